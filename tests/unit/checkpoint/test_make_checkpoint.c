/* test_make_checkpoint.c - the tool that writes generated checkpoints: the same bytes for the same seed, files that our readers
 * take, layouts that hold the same weights, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/sha256.h"
#include "checkpoint/codec.h"
#include "checkpoint/model.h"

/* Vectors committed elsewhere were computed on what the tool writes: when this value must change, they must be made anew. */
#define EDGES_SEED_1 "7a2ff5b5"

static char root[] = "/tmp/thespis-test-XXXXXX";

static int make_root(void **state)
{
    (void)state;
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *walk)
{
    (void)about;
    (void)kind;
    (void)walk;
    return remove(path);
}

static int remove_root(void **state)
{
    (void)state;
    return nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

/* Runs the tool with arguments in which %s stands for the scratch folder; its exit status. */
static int tool(const char *format)
{
    char arguments[1024], command[2048];
    snprintf(arguments, sizeof arguments, format, root);
    snprintf(command, sizeof command, "%s/make_checkpoint %s >%s/stdout 2>%s/stderr", TEST_BINARY_DIR, arguments, root, root);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void in_root(char path[512], const char *name)
{
    snprintf(path, 512, "%s/%s", root, name);
}

static int said(const char *stream, const char *words)
{
    char path[512], *text;
    size_t bytes;
    in_root(path, stream);
    assert_int_equal(th_file_read(path, 1 << 20, &text, &bytes, NULL), THESPIS_OK);
    int found = strstr(text, words) != NULL;
    if (!found) print_message("%s: %s\n", stream, text);
    th_free(text);
    return found;
}

static int not_dot(const struct dirent *item)
{
    return item->d_name[0] != '.';
}

static int is_weights(const struct dirent *item)
{
    return not_dot(item) && strstr(item->d_name, ".json") == NULL;
}

/* SHA-256 over names and contents of the files of a folder that `which` chooses. */
static void digest(const char *name, int (*which)(const struct dirent *), char hex[65])
{
    char folder[512];
    struct dirent **items;
    struct th_sha256 hash;
    in_root(folder, name);
    int count = scandir(folder, &items, which, alphasort);
    assert_true(count > 0);
    th_sha256_begin(&hash);
    for (int i = 0; i < count; i++) {
        char path[1024];
        struct th_map map;
        snprintf(path, sizeof path, "%s/%s", folder, items[i]->d_name);
        assert_int_equal(th_map_open(path, &map, NULL), THESPIS_OK);
        th_sha256_add(&hash, items[i]->d_name, strlen(items[i]->d_name));
        th_sha256_add(&hash, map.data, map.bytes);
        th_map_close(&map);
        free(items[i]);
    }
    free(items);
    th_sha256_end(&hash, hex);
}

static void test_same_seed_same_bytes(void **state)
{
    (void)state;
    char one[65], three[65], other[65];
    assert_int_equal(tool("--preset edges --seed 1 --threads 1 %s/one"), 0);
    assert_int_equal(tool("--preset edges --seed 1 --threads 3 %s/three"), 0);
    assert_int_equal(tool("--preset edges --seed 2 %s/other"), 0);
    digest("one", not_dot, one);
    digest("three", not_dot, three);
    digest("other", not_dot, other);
    assert_string_equal(one, three);
    assert_string_not_equal(one, other);
    digest("one", is_weights, one); /* how numbers are spelt in JSON is the JSON library's choice */
    one[strlen(EDGES_SEED_1)] = 0;
    assert_string_equal(one, EDGES_SEED_1);
}

static struct th_model *open_model(const char *name)
{
    char folder[512];
    struct th_model *model = NULL;
    thespis_error error = {0};
    in_root(folder, name);
    if (th_model_open(folder, &model, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return model;
}

static void check_codec(const char *name, int books)
{
    char path[512];
    struct th_codec *codec = NULL;
    thespis_error error = {0};
    snprintf(path, sizeof path, "%s/%s/codec.pth", root, name);
    if (th_codec_open(path, TH_CODEC_BOTH, &codec, &error) != THESPIS_OK) fail_msg("%s", error.message);
    assert_int_equal(codec->books, books);
    th_codec_close(codec);
}

static void test_readers_take_it(void **state)
{
    (void)state;
    assert_int_equal(tool("--preset edges %s/edges"), 0);
    assert_int_equal(tool("--preset odd %s/odd"), 0);
    struct th_model *edges = open_model("edges");
    assert_int_equal(edges->config.backbone.interval, 1);
    assert_int_equal(edges->config.tower.codebooks, 2);
    assert_true(edges->config.eos > edges->config.semantic_end);
    th_model_close(edges);
    struct th_model *odd = open_model("odd");
    assert_int_equal(odd->config.backbone.layers, 7);
    assert_int_equal(odd->config.tower.backbone_codebooks, 3);
    assert_int_equal(odd->config.semantic_end - odd->config.semantic_start + 1, 777);
    th_model_close(odd);
    check_codec("edges", 2);
    check_codec("odd", 7);
}

static void same_matrix(const struct th_expert_matrix *a, const struct th_expert_matrix *b)
{
    size_t count = (size_t)a->rows * (size_t)a->cols, blocks = (size_t)(a->rows / 128) * (size_t)(a->cols / 128);
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->cols, b->cols);
    assert_memory_equal(a->codes, b->codes, count);
    assert_memory_equal(a->scales, b->scales, blocks * sizeof *a->scales);
}

static void test_layouts_agree(void **state)
{
    (void)state;
    assert_int_equal(tool("--preset edges --no-codec %s/apart"), 0);
    assert_int_equal(tool("--preset edges --no-codec --layout stacked --shards 3 %s/stacked"), 0);
    struct th_model *apart = open_model("apart"), *stacked = open_model("stacked");
    for (int layer = 0; layer < apart->config.backbone.layers; layer++)
        for (int expert = 0; expert < apart->config.backbone.experts; expert++) {
            const struct th_expert *a = &apart->layers[layer].moe.experts[expert], *b = &stacked->layers[layer].moe.experts[expert];
            same_matrix(&a->gate, &b->gate);
            same_matrix(&a->up, &b->up);
            same_matrix(&a->down, &b->down);
        }
    th_model_close(apart);
    th_model_close(stacked);
}

static double e4m3(uint8_t code)
{
    int exponent = code >> 3 & 15, fraction = code & 7;
    double size = exponent == 0 ? ldexp(fraction, -9) : ldexp(8 + fraction, exponent - 10);
    return code & 0x80 ? -size : size;
}

static double bf16(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* FP8 weights are the bf16 ones under scales: within half a step of E4M3 (and of bf16), and each block's largest is 448. */
static void check_rounding(const struct th_expert_matrix *codes, const struct th_expert_matrix *plain)
{
    for (int row = 0; row < codes->rows; row++)
        for (int col = 0; col < codes->cols; col++) {
            size_t at = (size_t)row * (size_t)codes->cols + (size_t)col;
            double scale = codes->scales[row / 128 * (codes->cols / 128) + col / 128];
            double wanted = bf16(plain->bf16[at]), seen = e4m3(codes->codes[at]) * scale;
            double allowed = fabs(wanted) * (1.0 / 16 + 1.0 / 128) + ldexp(scale, -10);
            if (fabs(wanted - seen) > allowed) fail_msg("row %d column %d: %g instead of %g", row, col, seen, wanted);
        }
    for (int block = 0; block < codes->rows / 128 * (codes->cols / 128); block++) {
        int largest = 0, top = block / (codes->cols / 128) * 128, left = block % (codes->cols / 128) * 128;
        for (int i = 0; i < 128 * 128; i++) {
            int size = codes->codes[(size_t)(top + i / 128) * (size_t)codes->cols + (size_t)(left + i % 128)] & 0x7f;
            largest = size > largest ? size : largest;
        }
        assert_int_equal(largest, 0x7e);
    }
}

static void test_fp8_is_the_rounded_weight(void **state)
{
    (void)state;
    assert_int_equal(tool("--preset edges --no-codec %s/fp8"), 0);
    assert_int_equal(tool("--preset edges --no-codec --experts bf16 %s/bf16"), 0);
    struct th_model *fp8 = open_model("fp8"), *plain = open_model("bf16");
    check_rounding(&fp8->layers[1].moe.experts[3].gate, &plain->layers[1].moe.experts[3].gate);
    check_rounding(&fp8->layers[2].moe.experts[0].down, &plain->layers[2].moe.experts[0].down);
    th_model_close(fp8);
    th_model_close(plain);
}

static void test_published_size(void **state)
{
    (void)state;
    assert_int_equal(tool("--list"), 0);
    assert_true(said("stdout", "39595946112 bytes"));
    assert_true(said("stdout", "1870857736 bytes"));
}

static void test_refusals(void **state)
{
    (void)state;
    assert_int_equal(tool("--preset none %s/x"), 2);
    assert_true(said("stderr", "no preset 'none'"));
    assert_int_equal(tool("--preset tiny --seed one %s/x"), 2);
    assert_true(said("stderr", "--seed is 'one'"));
    assert_int_equal(tool("--preset tiny --layout flat %s/x"), 2);
    assert_true(said("stderr", "per-expert or stacked"));
    assert_int_equal(tool("--preset edges %s/stdout/inside"), 1);
    assert_true(said("stderr", "Not a directory"));
    assert_int_equal(tool("--preset"), 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_seed_same_bytes), cmocka_unit_test(test_readers_take_it),
        cmocka_unit_test(test_layouts_agree),        cmocka_unit_test(test_fp8_is_the_rounded_weight),
        cmocka_unit_test(test_published_size),       cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
