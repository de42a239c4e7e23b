/* checks.c - layers and heads alone, from given inputs: what a check of one rounding point needs. */
#include "backend/cpu/lm.h"

/* A batch of one span: rows row0.. of a lane. */
static struct th_lm_batch one_span(struct th_cpu *cpu, int lane, int row0, int n)
{
    struct th_lm_span *span = cpu->lm->work.spans;
    *span = (struct th_lm_span){.lane = &cpu->lm->lanes[lane], .number = lane, .column = 0, .position = row0, .count = n};
    return (struct th_lm_batch){.columns = n, .span_count = 1, .spans = span};
}

static void run_layer(struct th_cpu *cpu, const struct th_lm_batch *batch, int part, int layer, const float *in,
                      const int32_t *frames, const int32_t *labels, float *out)
{
    const struct th_config *config = &cpu->model->config;
    struct th_lm_work *work = &cpu->lm->work;
    const size_t bytes = (size_t)batch->columns * (size_t)config->backbone.hidden * sizeof(float);
    float *streams[] = {work->residual, work->handed, work->normed};
    memcpy(streams[part], in, bytes);
    if (part == 0) {
        th_lm_backbone_layer(cpu, batch, layer);
    } else if (part == 2) {
        th_lm_moe(cpu, batch, layer);
    } else {
        for (int c = 0; c < batch->columns; c++) {
            work->inputs[c] = frames + (size_t)c * (size_t)config->frame_width;
            work->labels[c] = labels + (size_t)c * (size_t)config->frame_width;
        }
        th_lm_tower_layer(cpu, batch, layer);
    }
    memcpy(out, part == 2 ? work->branch : streams[part], bytes);
}

thespis_status th_cpu_layer(struct th_backend *backend, int lane, int part, int layer, int row0, int n, const float *in,
                            const int32_t *frames, const int32_t *labels, float *out, thespis_error *error)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    TH_TRY(th_cpu_check_lane(cpu, lane, error));
    const struct th_config *config = &cpu->model->config;
    const int layers = part == 1 ? th_lm_tower_layers(config) : config->backbone.layers;
    if (part < 0 || part > 2 || layer < 0 || layer >= layers)
        return th_fail(error, THESPIS_INVALID, "layer %d of part %d: part is 0, 1 or 2, and this part has %d layers", layer, part,
                       layers);
    if (row0 < 0 || n < 1 || row0 > cpu->lm->max_rows - n)
        return th_fail(error, THESPIS_LIMIT, "rows %d to %d of a lane of %d", row0, row0 + n - 1, cpu->lm->max_rows);
    if (part == 1 && (frames == NULL || labels == NULL))
        return th_fail(error, THESPIS_INVALID, "a tower layer needs frames and labels");
    const int piece = cpu->lm->work.columns, width = config->frame_width;
    for (int done = 0; done < n; done += piece) {
        int count = n - done < piece ? n - done : piece;
        struct th_lm_batch batch = one_span(cpu, lane, row0 + done, count);
        size_t values = (size_t)done * (size_t)config->backbone.hidden, codes = (size_t)done * (size_t)width;
        run_layer(cpu, &batch, part, layer, in + values, part == 1 ? frames + codes : NULL, part == 1 ? labels + codes : NULL,
                  out + values);
    }
    return THESPIS_OK;
}

thespis_status th_cpu_head(struct th_backend *backend, int part, int n, const float *in, float *out, thespis_error *error)
{
    struct th_cpu *cpu = th_cpu_of(backend);
    if (cpu->lm == NULL) return th_fail(error, THESPIS_UNSUPPORTED, "heads need a language model, and only a codec was opened");
    const struct th_config *config = &cpu->model->config;
    if (part < 0 || part >= 2 + config->tower.residual_layers)
        return th_fail(error, THESPIS_INVALID, "head %d: 0 is the final norm, 1 the candidates, 2 to %d the codes", part,
                       1 + config->tower.residual_layers);
    if (part == 0)
        th_lm_norm_rows(cpu, in, cpu->model->final_norm, config->backbone.norm_eps, n, out, config->backbone.hidden);
    else if (part == 1)
        th_lm_candidate_logits(cpu, in, n, out);
    else
        th_lm_code_logits(cpu, part - 2, in, n, out);
    return THESPIS_OK;
}
