/* test_reference_draws.c - draws of the reference's own kernels (tools/oracle/make_sampler_vectors.py), each repeated here: every
 * one must choose the same candidate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/npy.h"
#include "sampler/sampler.h"

#define FOLDER TEST_SOURCE_DIR "/tests/vectors/sampler/"
#define MOST 2048

struct line {
    char head[8], type[8], window[256], drawn[16], redrawn[4], path[8], eos[16], start[16];
    long offset;
    int count;
    struct th_draw draw;
    int kept;
    double margin;
};

static struct th_npy bf16, f32;

static int open_logits(void **state)
{
    (void)state;
    if (th_npy_read(FOLDER "logits.npy", 1 << 20, &bf16, NULL) != THESPIS_OK) return 1;
    return th_npy_read(FOLDER "logits_f32.npy", 1 << 20, &f32, NULL) != THESPIS_OK;
}

static int close_logits(void **state)
{
    (void)state;
    th_npy_free(&bf16);
    th_npy_free(&f32);
    return 0;
}

static void logits_of(const struct line *line, float *logits)
{
    const struct th_npy *rows = strcmp(line->type, "bf16") == 0 ? &bf16 : &f32;
    assert_true(line->count >= 1 && line->count <= MOST && line->offset >= 0 && line->offset + line->count <= rows->count);
    for (int i = 0; i < line->count; i++) {
        if (rows == &f32) {
            logits[i] = ((const float *)rows->data)[line->offset + i];
        } else {
            uint32_t bits = (uint32_t)((const uint16_t *)rows->data)[line->offset + i] << 16;
            memcpy(logits + i, &bits, sizeof bits);
        }
    }
}

static void parse(const char *text, struct line *line)
{
    memset(line, 0, sizeof *line);
    int fields = sscanf(text,
                        "%7s %7s %ld %d %f %" SCNd32 " %f %" SCNu64 " %" SCNu64 " %" SCNu32 " %" SCNu32
                        " %15s %15s %255s %15s %3s %7s %d %lf",
                        line->head, line->type, &line->offset, &line->count, &line->draw.temperature, &line->draw.top_k,
                        &line->draw.top_p, &line->draw.seed, &line->draw.step, &line->draw.row, &line->draw.stream, line->eos,
                        line->start, line->window, line->drawn, line->redrawn, line->path, &line->kept, &line->margin);
    if (fields != 19) fail_msg("%d fields in '%s'", fields, text);
}

/* A main head: the window of the line, then one frame's main token. */
static int32_t main_token(const struct line *line, const float *logits, struct th_draw_scratch *scratch,
                          struct th_draw_report *last)
{
    struct th_sampler sampler;
    th_sampler_begin(&sampler, &(struct th_sampling){line->draw.temperature, line->draw.top_p, line->draw.top_k, line->draw.seed,
                                                     line->draw.row, 0});
    sampler.step = line->draw.step - 1;
    const char *at = line->window;
    for (int i = 0; i < TH_RAS_WINDOW; i++) {
        char *end;
        th_sampler_see(&sampler, (int32_t)strtol(at, &end, 10));
        assert_true(end > at);
        at = end + (*end == ',');
    }
    struct th_main_head head = {line->count, atoi(line->eos), atoi(line->start)};
    struct th_draw_report reports[2];
    int32_t token;
    assert_int_equal(th_sampler_main(&sampler, &head, logits, scratch, &token, reports, NULL), THESPIS_OK);
    assert_int_equal(reports[1].kept > 0, atoi(line->redrawn));
    *last = reports[1].kept > 0 ? reports[1] : reports[0];
    return token;
}

static int32_t code(struct line *line, const float *logits, struct th_draw_scratch *scratch, struct th_draw_report *report)
{
    line->draw.crossing = strcmp(line->head, "keep") == 0 ? TH_KEEP_CROSSING : TH_EXCLUDE_CROSSING;
    int index;
    assert_int_equal(th_draw_index(&line->draw, logits, line->count, scratch, &index, report, NULL), THESPIS_OK);
    return index;
}

static void every_draw_is_the_references(void **state)
{
    (void)state;
    FILE *file = fopen(FOLDER "draws.tsv", "r");
    assert_non_null(file);
    struct th_draw_scratch scratch;
    assert_int_equal(th_draw_scratch_open(MOST, &scratch, NULL), THESPIS_OK);
    char text[512];
    assert_non_null(fgets(text, sizeof text, file)); /* names of the columns */
    int draws = 0, differences = 0, searches = 0, redrawn = 0, alone = 0, close = 0;
    while (fgets(text, sizeof text, file)) {
        static float logits[MOST];
        struct line line;
        parse(text, &line);
        logits_of(&line, logits);
        struct th_draw_report report;
        int is_main = strcmp(line.head, "main") == 0;
        int32_t got = is_main ? main_token(&line, logits, &scratch, &report) : code(&line, logits, &scratch, &report);
        if (got != atoi(line.drawn) || report.kept != line.kept) {
            print_error("%d of %d kept instead of %s of %d: %s", got, report.kept, line.drawn, line.kept, text);
            differences++;
        }
        draws++;
        searches += strcmp(line.path, "search") == 0;
        redrawn += is_main && line.redrawn[0] == '1';
        alone += line.kept == 1;
        close += line.margin < 1.01;
    }
    fclose(file);
    th_draw_scratch_close(&scratch);
    print_message("%d draws, %d by search, %d drawn again, %d alone, %d with a margin below 1.01\n", draws, searches, redrawn,
                  alone, close);
    assert_int_equal(differences, 0);
    assert_true(draws >= 200 && searches >= 30 && redrawn >= 10 && alone >= 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_draw_is_the_references)};
    return cmocka_run_group_tests(tests, open_logits, close_logits);
}
