/* sampler.c - the rules of a frame: one main token, drawn again when it repeats, then the codes; and the window of the last rows.
 */
#include "sampler/sampler.h"

#include <string.h>

void th_sampler_begin(struct th_sampler *sampler, const struct th_sampling *settings)
{
    sampler->settings = *settings;
    sampler->step = 0;
    for (int i = 0; i < TH_RAS_WINDOW; i++) sampler->window[i] = -1;
}

void th_sampler_see(struct th_sampler *sampler, int32_t main_token)
{
    memmove(sampler->window, sampler->window + 1, (TH_RAS_WINDOW - 1) * sizeof *sampler->window);
    sampler->window[TH_RAS_WINDOW - 1] = main_token;
}

static int seen(const struct th_sampler *sampler, int32_t main_token)
{
    for (int i = 0; i < TH_RAS_WINDOW; i++)
        if (sampler->window[i] == main_token) return 1;
    return 0;
}

static struct th_draw draw_for(const struct th_sampler *sampler, uint32_t stream)
{
    const struct th_sampling *settings = &sampler->settings;
    return (struct th_draw){.temperature = settings->temperature,
                            .top_k = settings->top_k,
                            .top_p = settings->top_p,
                            .crossing = TH_KEEP_CROSSING,
                            .seed = settings->seed,
                            .step = sampler->step,
                            .row = settings->row,
                            .stream = stream,
                            .greedy = settings->greedy};
}

/* Candidates ascend by id: eos is the first when it lies below the band and the last when above. */
static int32_t token_of(const struct th_main_head *head, int index)
{
    if (head->eos < head->semantic_start) return index == 0 ? head->eos : head->semantic_start + index - 1;
    return index == head->candidates - 1 ? head->eos : head->semantic_start + index;
}

thespis_status th_sampler_main(struct th_sampler *sampler, const struct th_main_head *head, const float *logits,
                               struct th_draw_scratch *scratch, int32_t *main_token, struct th_draw_report reports[2],
                               thespis_error *error)
{
    if (reports) reports[1] = (struct th_draw_report){0};
    sampler->step++;
    struct th_draw draw = draw_for(sampler, TH_STREAM_MAIN);
    int index;
    TH_TRY(th_draw_index(&draw, logits, head->candidates, scratch, &index, reports, error));
    int32_t token = token_of(head, index);
    if (!draw.greedy && token != head->eos && seen(sampler, token)) {
        /* Only drawn when used: noise is counted, so leaving it out changes no other draw. It stands even if it repeats or is eos.
         */
        draw.temperature = TH_RAS_TEMPERATURE;
        draw.top_k = TH_RAS_TOP_K;
        draw.top_p = TH_RAS_TOP_P;
        draw.stream = TH_STREAM_RAS;
        TH_TRY(th_draw_index(&draw, logits, head->candidates, scratch, &index, reports ? reports + 1 : NULL, error));
        token = token_of(head, index);
    }
    th_sampler_see(sampler, token);
    *main_token = token;
    return THESPIS_OK;
}

thespis_status th_sampler_code(struct th_sampler *sampler, int j, const float *logits, int count, struct th_draw_scratch *scratch,
                               int32_t *code, struct th_draw_report *report, thespis_error *error)
{
    struct th_draw draw = draw_for(sampler, TH_STREAM_CODES + (uint32_t)(j - 1));
    draw.crossing = TH_EXCLUDE_CROSSING;
    if (draw.top_k > TH_CODE_TOP_K) draw.top_k = TH_CODE_TOP_K;
    int index;
    TH_TRY(th_draw_index(&draw, logits, count, scratch, &index, report, error));
    *code = index;
    return THESPIS_OK;
}
