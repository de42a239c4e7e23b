/* test_codec_file.c - the codec's weights from both containers: sizes, folds, the exact set of tensors, halves, conversion. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include "base/memory.h"
#include "checkpoint/codec.h"
#include "checkpoint/codec_weights.h"
#include "unit/checkpoint/codec_builder.h"
#include "unit/checkpoint/scratch.h"

static void write_file(const char *name, struct bytes *file)
{
    FILE *stream = scratch_create(name);
    scratch_bytes(stream, file->at, file->count);
    scratch_close(stream);
    drop(file);
}

static void write_parts(const char *name, const struct parts *parts, struct packing packing)
{
    struct bytes file = codec_archive(parts, &packing);
    write_file(name, &file);
}

static thespis_status open_codec(const char *name, int halves, struct th_codec **codec, thespis_error *error)
{
    char path[SCRATCH_PATH];
    scratch_path(path, name);
    memset(error, 0, sizeof *error);
    return th_codec_open(path, halves, codec, error);
}

static struct th_codec *must_open(const char *name, int halves)
{
    struct th_codec *codec;
    thespis_error error;
    if (open_codec(name, halves, &codec, &error) != THESPIS_OK) fail_msg("%s", error.message);
    return codec;
}

static void expect_refusal(const char *name, int halves, const char *words)
{
    struct th_codec *codec;
    thespis_error error;
    thespis_status status = open_codec(name, halves, &codec, &error);
    assert_null(codec);
    if (status != THESPIS_FORMAT || strstr(error.message, words) == NULL)
        fail_msg("status %d, message '%s' lacks '%s'", (int)status, error.message, words);
}

static void must_convert(const char *from, const char *to)
{
    char pth[SCRATCH_PATH], out[SCRATCH_PATH];
    thespis_error error = {0};
    scratch_path(pth, from);
    scratch_path(out, to);
    if (th_codec_convert(pth, out, &error) != THESPIS_OK) fail_msg("%s", error.message);
}

static const struct part *part_of(const struct parts *parts, const char *format, const char *base)
{
    char name[200];
    snprintf(name, sizeof name, "%s%s", base, format);
    return find_part(parts, name);
}

/* One row of a weight-normed tensor by the definition, in long double. */
static void expect_fold(const float *got, const struct part *gain, const struct part *direction)
{
    int64_t columns = direction->items / direction->shape[0];
    for (int64_t i = 0; i < direction->shape[0]; i++) {
        const float *row = direction->values + i * columns;
        long double sum = 0;
        for (int64_t k = 0; k < columns; k++) sum += (long double)row[k] * row[k];
        for (int64_t k = 0; k < columns; k++) {
            long double want = row[k] * (gain->values[i] / sqrtl(sum));
            assert_true(fabsl(got[i * columns + k] - want) <= 6.0e-8L * fabsl(want));
        }
    }
}

/* ---- loading ----------------------------------------------------------------------------------------------------------------- */

static void expect_conv(const struct th_conv *conv, int in, int out, int kernel, int stride, int dilation, int transposed)
{
    assert_int_equal(conv->in, in);
    assert_int_equal(conv->out, out);
    assert_int_equal(conv->kernel, kernel);
    assert_int_equal(conv->stride, stride);
    assert_int_equal(conv->dilation, dilation);
    assert_int_equal(conv->transposed, transposed);
}

static void test_sizes(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    write_parts("codec.pth", &parts, (struct packing){0});
    struct th_codec *codec = must_open("codec.pth", TH_CODEC_BOTH);
    assert_int_equal(codec->latent, LATENT);
    assert_int_equal(codec->books, 1 + RESIDUAL_BOOKS);
    assert_int_equal(codec->code_width, CODE_WIDTH);
    assert_int_equal(codec->book_entries[0], ENTRIES);
    assert_int_equal(codec->book_entries[2], RESIDUAL_ENTRIES);
    assert_int_equal(codec->decoder.post.layers, LAYERS);
    assert_int_equal(codec->decoder.post.inner, INNER);
    assert_int_equal(codec->decoder.post.heads, 1);
    assert_int_equal(codec->decoder.post.window, 128);
    assert_int_equal(codec->encoder.pre.window, 128);
    assert_int_equal(codec->encoder.transformer.window, 512);
    expect_conv(&codec->encoder.first, 1, 4, 7, 1, 1, 0);
    expect_conv(&codec->encoder.blocks[1].conv, 8, 16, 8, 4, 1, 0);
    expect_conv(&codec->encoder.blocks[3].units[2].dilated, 32, 32, 7, 1, 9, 0);
    expect_conv(&codec->encoder.last, 64, 64, 3, 1, 1, 0);
    expect_conv(&codec->encoder.down[1], 64, 64, 2, 2, 1, 0);
    expect_conv(&codec->decoder.up[0], 64, 64, 2, 2, 1, 1);
    expect_conv(&codec->decoder.first, 64, 32, 7, 1, 1, 0);
    expect_conv(&codec->decoder.blocks[0].conv, 32, 16, 16, 8, 1, 1);
    expect_conv(&codec->decoder.blocks[3].conv, 4, 2, 4, 2, 1, 1);
    expect_conv(&codec->decoder.blocks[3].units[1].dilated, 2, 2, 7, 1, 3, 0);
    expect_conv(&codec->decoder.last, 2, 1, 7, 1, 1, 0);
    assert_int_equal(codec->decoder.up_next[1].depthwise.groups, LATENT);
    th_codec_close(codec);
    drop_parts(&parts);
}

static void test_folds(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    struct th_codec *codec = must_open("codec.pth", TH_CODEC_BOTH);
    const char *book = "quantizer.quantizer.quantizers.1.";
    const struct {
        const float *weight;
        const char *base;
    } convs[] = {
        {codec->encoder.first.weight, "encoder.block.0.conv.parametrizations.weight."},
        {codec->encoder.blocks[2].units[1].pointwise.weight, "encoder.block.3.block.1.block.3.conv.parametrizations.weight."},
        {codec->decoder.first.weight, "decoder.model.0.conv.parametrizations.weight."},
        {codec->decoder.blocks[0].conv.weight, "decoder.model.1.block.1.conv.parametrizations.weight."},
        {codec->decoder.blocks[2].conv.weight, "decoder.model.3.block.1.conv.parametrizations.weight."},
        {codec->decoder.last.weight, "decoder.model.6.conv.parametrizations.weight."}};
    for (size_t i = 0; i < sizeof convs / sizeof *convs; i++)
        expect_fold(convs[i].weight, part_of(&parts, "original0", convs[i].base), part_of(&parts, "original1", convs[i].base));
    expect_fold(codec->book[2].in_weight, part_of(&parts, "in_proj.weight_g", book), part_of(&parts, "in_proj.weight_v", book));
    expect_fold(codec->book[2].out_weight, part_of(&parts, "out_proj.weight_g", book), part_of(&parts, "out_proj.weight_v", book));
    assert_memory_equal(codec->book[2].codebook, part_of(&parts, "codebook.weight", book)->values,
                        RESIDUAL_ENTRIES * CODE_WIDTH * 4);
    assert_memory_equal(codec->decoder.post.layer[1].w2,
                        find_part(&parts, "quantizer.post_module.layers.1.feed_forward.w2.weight")->values, LATENT * INNER * 4);
    assert_memory_equal(codec->encoder.pre.layer[0].wo,
                        find_part(&parts, "quantizer.pre_module.layers.0.attention.wo.weight")->values, LATENT * LATENT * 4);
    th_codec_close(codec);
    drop_parts(&parts);
}

static void test_halves(void **state)
{
    (void)state;
    struct th_codec *both = must_open("codec.pth", TH_CODEC_BOTH), *decode = must_open("codec.pth", TH_CODEC_DECODE);
    struct th_codec *encode = must_open("codec.pth", TH_CODEC_ENCODE);
    assert_true(decode->has_decoder && !decode->has_encoder && !encode->has_decoder && encode->has_encoder);
    assert_null(decode->encoder.first.weight);
    assert_null(decode->encoder.pre.layer[0].wo);
    assert_null(decode->book[0].in_weight);
    assert_non_null(decode->book[0].out_weight);
    assert_non_null(decode->decoder.last.weight);
    assert_null(encode->decoder.up[0].weight);
    assert_non_null(encode->book[1].codebook);
    assert_non_null(encode->book[1].in_bias);
    assert_non_null(encode->encoder.down_next[1].gamma);
    assert_string_equal(both->id, decode->id);
    assert_string_equal(both->id, encode->id);
    assert_true(both->owned_bytes > decode->owned_bytes && both->mapped_bytes > encode->mapped_bytes);
    th_codec_close(both);
    th_codec_close(decode);
    th_codec_close(encode);
    struct th_codec *none;
    assert_int_equal(th_codec_open("x", 0, &none, NULL), THESPIS_INVALID);
    assert_int_equal(th_codec_open("x", 4, &none, NULL), THESPIS_INVALID);
}

/* Columns first, and payloads that begin at odd addresses: both are copied into place. */
static void test_gathers_and_aligns(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    write_parts("strided.pth", &parts, (struct packing){.transposed = 1, .skew = 1});
    struct th_codec *codec = must_open("strided.pth", TH_CODEC_BOTH), *plain = must_open("codec.pth", TH_CODEC_BOTH);
    assert_memory_equal(codec->decoder.post.layer[1].w2, plain->decoder.post.layer[1].w2, LATENT * INNER * 4);
    assert_memory_equal(codec->book[1].codebook, plain->book[1].codebook, RESIDUAL_ENTRIES * CODE_WIDTH * 4);
    assert_memory_equal(codec->encoder.blocks[3].conv.weight, plain->encoder.blocks[3].conv.weight, 64 * 32 * 16 * 4);
    assert_memory_equal(codec->decoder.up_next[1].gamma, plain->decoder.up_next[1].gamma, LATENT * 4);
    assert_int_equal(codec->mapped_bytes, 0);
    assert_int_equal((uintptr_t)codec->decoder.up_next[1].gamma % 64, 0);
    th_codec_close(codec);
    th_codec_close(plain);
    drop_parts(&parts);
}

/* How many pages of [data, data + bytes) this process has mapped in; -1 when the system does not tell. */
static long present_pages(const uint8_t *data, size_t bytes)
{
    long page = sysconf(_SC_PAGESIZE), present = 0;
    int fd = open("/proc/self/pagemap", O_RDONLY);
    if (fd < 0) return -1;
    for (uintptr_t at = (uintptr_t)data / (uintptr_t)page; at < ((uintptr_t)data + bytes) / (uintptr_t)page; at++) {
        uint64_t entry;
        if (pread(fd, &entry, sizeof entry, (off_t)(at * sizeof entry)) != sizeof entry) present = -1;
        if (present < 0) break;
        present += (long)(entry >> 63);
    }
    close(fd);
    return present;
}

/* Does touching a mapped file's first byte leave pages far behind it out? */
static int pages_tell(const char *name)
{
    char path[SCRATCH_PATH];
    struct th_map map;
    scratch_path(path, name);
    assert_int_equal(th_map_open(path, &map, NULL), THESPIS_OK);
    volatile uint8_t first = map.data[0];
    (void)first;
    long before = present_pages(map.data, 4096), behind = present_pages(map.data + map.bytes / 2, map.bytes / 4);
    th_map_close(&map);
    return before == 1 && behind == 0;
}

static void test_never_touches_the_buffers(void **state)
{
    (void)state;
    static const char *const modules[] = {"encoder.block.4.block.5", "quantizer.pre_module", "quantizer.post_module"};
    const size_t around = 2 << 20; /* the system may map neighbours of a touched page too */
    char name[128];
    struct parts parts = codec_parts();
    for (int i = 0; i < 3; i++) {
        add_part(&parts, 2, i == 1 ? 8192 : 64, 1024, 0, "%s.causal_mask", modules[i])->type = "BoolStorage";
        add_part(&parts, 3, 64, 32, 2, "%s.freqs_cis", modules[i])->type = "BFloat16Storage";
    }
    write_parts("buffers.pth", &parts, (struct packing){0});
    drop_parts(&parts);
    struct th_codec *codec = must_open("buffers.pth", TH_CODEC_BOTH), *plain = must_open("codec.pth", TH_CODEC_BOTH);
    assert_string_equal(codec->id, plain->id);
    const struct th_codec_weights *weights = codec->storage;
    snprintf(name, sizeof name, "%s.causal_mask", modules[1]);
    const struct th_zip_entry *entry = th_pth_find(&weights->pth, name)->storage;
    long present = present_pages(entry->data + around, entry->bytes - 2 * around);
    th_codec_close(codec);
    th_codec_close(plain);
    if (!pages_tell("buffers.pth")) skip();
    assert_int_equal(present, 0);
}

/* ---- the exact set ----------------------------------------------------------------------------------------------------------- */

/* The name that messages about this tensor hold: that of the folded one, without ".weight". */
static void base_name(const char *name, char *base)
{
    static const char *const ends[] = {".parametrizations.weight", ".weight_", ".weight"};
    strcpy(base, name);
    for (int i = 0; i < 3; i++) {
        char *end = strstr(base, ends[i]);
        if (end != NULL) *end = '\0';
    }
}

static void test_every_missing_tensor(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    write_parts("names.pth", &parts, (struct packing){.shared = 1});
    th_codec_close(must_open("names.pth", TH_CODEC_BOTH));
    for (size_t i = 0; i < parts.count; i++) {
        char base[128];
        base_name(parts.at[i].name, base);
        write_parts("names.pth", &parts, (struct packing){.shared = 1, .without = parts.at[i].name});
        expect_refusal("names.pth", 1 + (int)(i % 2), base);
    }
    drop_parts(&parts);
}

static void test_every_misshapen_tensor(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    for (size_t i = 0; i < parts.count; i++) {
        struct part *part = &parts.at[i], saved = *part;
        struct th_codec *codec;
        thespis_error error;
        part->shape[part->rank - 1]++;
        part->items = part->items / saved.shape[part->rank - 1] * part->shape[part->rank - 1];
        part->values = NULL;
        write_parts("names.pth", &parts, (struct packing){.shared = 1});
        /* A size that others are measured by is blamed on one of those, all others on the tensor itself. */
        assert_int_equal(open_codec("names.pth", TH_CODEC_BOTH, &codec, &error), THESPIS_FORMAT);
        *part = saved;
        if (i % 5 != 0) continue;
        part->rank++;
        part->shape[part->rank - 1] = 1;
        write_parts("names.pth", &parts, (struct packing){.shared = 1});
        char base[128];
        base_name(part->name, base);
        expect_refusal("names.pth", TH_CODEC_DECODE, base);
        *part = saved;
    }
    drop_parts(&parts);
}

static void test_extra_tensors(void **state)
{
    (void)state;
    static const char *const names[] = {"decoder.model.7.alpha",
                                        "decoder.model.1.block.5.norm.weight",
                                        "quantizer.pre_module.freqs_cis2",
                                        "quantizer.pre_module.layers.0.freqs_cis",
                                        "quantizer.semantic_quantizer.quantizers.1.codebook.weight",
                                        "encoder.block.0.conv.weight",
                                        "encoder.block.0.conv.weight_g",
                                        "decoder.model.5.alpha.weight_v",
                                        "quantizer.post_module.layers.64.wo",
                                        "quantizer.quantizer.quantizers.31.in_proj.bias",
                                        "quantizer.quantizer.quantizers.99999999999999999999.in_proj.bias"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct parts parts = codec_parts();
        add_part(&parts, 1, 4, 0, 0, "%s", names[i]);
        write_parts("names.pth", &parts, (struct packing){.shared = 1});
        drop_parts(&parts);
        char base[128];
        base_name(names[i], base);
        expect_refusal("names.pth", TH_CODEC_BOTH, base);
    }
}

/* A hole in a row of layers or books is named, not the ones behind it. */
static void test_holes(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    struct part *norm = find_part(&parts, "quantizer.post_module.layers.1.ffn_norm.weight");
    strcpy(norm->name, "quantizer.post_module.layers.3.ffn_norm.weight");
    write_parts("names.pth", &parts, (struct packing){.shared = 1});
    expect_refusal("names.pth", TH_CODEC_BOTH, "'quantizer.post_module.layers.1.ffn_norm.weight' is missing");
    drop_parts(&parts);
}

static void rename_part(struct parts *parts, const char *from, const char *to)
{
    strcpy(find_part(parts, from)->name, to);
}

static void test_either_spelling_but_not_both(void **state)
{
    (void)state;
    const char *gain = "encoder.block.6.conv.parametrizations.weight.original0";
    const char *direction = "encoder.block.6.conv.parametrizations.weight.original1";
    struct parts parts = codec_parts();
    rename_part(&parts, gain, "encoder.block.6.conv.weight_g");
    write_parts("names.pth", &parts, (struct packing){.shared = 1});
    expect_refusal("names.pth", TH_CODEC_BOTH, "both about 'encoder.block.6.conv.weight'");
    rename_part(&parts, direction, "encoder.block.6.conv.weight_v");
    write_parts("names.pth", &parts, (struct packing){.shared = 1});
    th_codec_close(must_open("names.pth", TH_CODEC_BOTH));
    find_part(&parts, "encoder.block.6.conv.weight_g")->shape[0]--;
    write_parts("names.pth", &parts, (struct packing){.shared = 1});
    expect_refusal("names.pth", TH_CODEC_BOTH, "'encoder.block.6.conv.weight_g' is not one gain for each row");
    /* A weight that should be normed and is plain, and the other way round. */
    rename_part(&parts, "encoder.block.6.conv.weight_v", "encoder.block.6.conv.weight");
    write_parts("names.pth", &parts, (struct packing){.shared = 1, .without = "encoder.block.6.conv.weight_g"});
    expect_refusal("names.pth", TH_CODEC_BOTH, "'encoder.block.6.conv.weight' is plain");
    drop_parts(&parts);
    parts = codec_parts();
    rename_part(&parts, "quantizer.upsample.0.0.conv.weight", "quantizer.upsample.0.0.conv.weight_v");
    add_part(&parts, 3, LATENT, 1, 1, "quantizer.upsample.0.0.conv.weight_g");
    write_parts("names.pth", &parts, (struct packing){.shared = 1});
    expect_refusal("names.pth", TH_CODEC_BOTH, "'quantizer.upsample.0.0.conv.weight' has gain and direction");
    drop_parts(&parts);
}

static void test_other_types(void **state)
{
    (void)state;
    static const char *const names[] = {"decoder.model.5.alpha", "decoder.model.0.conv.parametrizations.weight.original0",
                                        "quantizer.quantizer.quantizers.0.in_proj.weight_v"};
    for (int i = 0; i < 3; i++) {
        struct parts parts = codec_parts();
        find_part(&parts, names[i])->type = i == 1 ? "HalfStorage" : "BFloat16Storage";
        write_parts("names.pth", &parts, (struct packing){0});
        expect_refusal("names.pth", TH_CODEC_ENCODE, "F32 was expected");
        expect_refusal("names.pth", TH_CODEC_ENCODE, names[i]);
        drop_parts(&parts);
    }
}

static void test_widths(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    find_part(&parts, "decoder.model.0.conv.parametrizations.weight.original1")->shape[1] = 65;
    write_parts("names.pth", &parts, (struct packing){.shared = 1});
    expect_refusal("names.pth", TH_CODEC_BOTH, "latent width is 65");
    drop_parts(&parts);
    parts = codec_parts();
    find_part(&parts, "decoder.model.0.conv.parametrizations.weight.original1")->shape[0] = 24;
    find_part(&parts, "decoder.model.0.conv.parametrizations.weight.original0")->shape[0] = 24;
    write_parts("names.pth", &parts, (struct packing){.shared = 1});
    expect_refusal("names.pth", TH_CODEC_BOTH, "decoder width is 24");
    drop_parts(&parts);
}

/* ---- values ------------------------------------------------------------------------------------------------------------------ */

static void test_bad_values(void **state)
{
    (void)state;
    const struct {
        const char *name;
        float value;
        int halves; /* that read this tensor */
        const char *words;
    } cases[] = {{"decoder.model.2.block.0.alpha", NAN, TH_CODEC_DECODE, "'decoder.model.2.block.0.alpha': 1 of its 16 values"},
                 {"encoder.block.6.conv.bias", INFINITY, TH_CODEC_ENCODE, "encoder.block.6.conv.bias"},
                 {"quantizer.quantizer.quantizers.0.codebook.weight", -INFINITY, TH_CODEC_BOTH, "codebook.weight"},
                 {"encoder.block.0.conv.parametrizations.weight.original0", NAN, TH_CODEC_ENCODE, "encoder.block.0.conv.weight"},
                 {"decoder.model.6.conv.parametrizations.weight.original1", INFINITY, TH_CODEC_DECODE, "row 0 has norm inf"},
                 {"decoder.model.6.conv.parametrizations.weight.original1", NAN, TH_CODEC_DECODE, "norm"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct parts parts = codec_parts();
        struct part *part = find_part(&parts, cases[i].name);
        part->values[part->items - 1] = cases[i].value;
        write_parts("values.pth", &parts, (struct packing){0});
        for (int halves = TH_CODEC_DECODE; halves <= TH_CODEC_BOTH; halves++) {
            if (halves & cases[i].halves)
                expect_refusal("values.pth", halves, cases[i].words);
            else
                th_codec_close(must_open("values.pth", halves));
        }
        drop_parts(&parts);
    }
}

static void test_zero_norm(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    struct part *part = find_part(&parts, "decoder.model.3.block.1.conv.parametrizations.weight.original1");
    int64_t columns = part->items / part->shape[0];
    for (int64_t k = 0; k < columns; k++) part->values[2 * columns + k] = 0;
    write_parts("values.pth", &parts, (struct packing){0});
    expect_refusal("values.pth", TH_CODEC_DECODE,
                   "'decoder.model.3.block.1.conv.parametrizations.weight.original1': row 2 has norm 0");
    drop_parts(&parts);
}

static void open_id(const char *name, char id[65])
{
    struct th_codec *codec = must_open(name, TH_CODEC_DECODE);
    memcpy(id, codec->id, 65);
    th_codec_close(codec);
}

/* With checksums and without: another value gives another id, the same values the same. */
static void test_id(void **state)
{
    (void)state;
    char first[65], again[65], changed[65], with_crc[65];
    for (int no_crc = 0; no_crc < 2; no_crc++) {
        struct parts parts = codec_parts();
        write_parts("id.pth", &parts, (struct packing){.no_crc = no_crc});
        open_id("id.pth", first);
        write_parts("id.pth", &parts, (struct packing){.no_crc = no_crc});
        open_id("id.pth", again);
        find_part(&parts, "encoder.block.1.block.3.alpha")->values[3] += 0.5f;
        write_parts("id.pth", &parts, (struct packing){.no_crc = no_crc});
        open_id("id.pth", changed);
        assert_string_equal(first, again);
        assert_string_not_equal(first, changed);
        if (no_crc) assert_string_not_equal(first, with_crc);
        memcpy(with_crc, first, sizeof with_crc);
        drop_parts(&parts);
    }
}

/* ---- the converted file ------------------------------------------------------------------------------------------------------ */

/* Compares what two open codecs hold, tensor by tensor. */
static void expect_equal_codecs(const struct th_codec *a, const struct th_codec *b)
{
    const struct th_codec_weights *x = a->storage, *y = b->storage;
    assert_int_equal(x->count, y->count);
    for (size_t i = 0; i < x->count; i++) {
        assert_string_equal(x->weights[i].name, y->weights[i].name);
        assert_int_equal(x->weights[i].rank, y->weights[i].rank);
        assert_memory_equal(x->weights[i].shape, y->weights[i].shape, sizeof x->weights[i].shape);
        assert_memory_equal(*x->weights[i].slot, *y->weights[i].slot, (size_t)x->weights[i].items * sizeof(float));
    }
    assert_string_equal(a->id, b->id);
}

static void test_converts(void **state)
{
    (void)state;
    must_convert("codec.pth", "codec.safetensors");
    struct th_codec *pth = must_open("codec.pth", TH_CODEC_BOTH), *folded = must_open("codec.safetensors", TH_CODEC_BOTH);
    expect_equal_codecs(pth, folded);
    assert_int_equal(folded->owned_bytes, 0);
    assert_int_equal(folded->encoder.transformer.window, 512);
    struct th_codec *half = must_open("codec.safetensors", TH_CODEC_DECODE);
    assert_null(half->encoder.last.weight);
    th_codec_close(half);
    th_codec_close(pth);
    th_codec_close(folded);
}

/* Rewrites codec.safetensors as `name` with one metadata key changed, or left out when value is NULL. */
static void with_metadata(const char *name, const char *key, const char *value)
{
    char from[SCRATCH_PATH], to[SCRATCH_PATH];
    struct th_safetensors file;
    scratch_path(from, "codec.safetensors");
    scratch_path(to, name);
    assert_int_equal(th_safetensors_open(from, &file, NULL), THESPIS_OK);
    struct th_tensor_out *tensors = calloc(file.count, sizeof *tensors);
    assert_non_null(tensors);
    for (size_t i = 0; i < file.count; i++) {
        const struct th_tensor *t = &file.tensors[i];
        tensors[i] = (struct th_tensor_out){.name = t->name, .dtype = t->dtype, .rank = t->rank, .data = t->data};
        memcpy(tensors[i].shape, t->shape, sizeof t->shape);
    }
    json_t *metadata = json_copy(file.metadata);
    if (value != NULL)
        json_object_set_new(metadata, key, json_string(value));
    else
        json_object_del(metadata, key);
    assert_int_equal(th_safetensors_write(to, tensors, file.count, metadata, NULL), THESPIS_OK);
    json_decref(metadata);
    free(tensors);
    th_safetensors_close(&file);
}

static void test_metadata(void **state)
{
    (void)state;
    static const char *const keys[] = {"format",          "sample_rate",      "hop",        "frame",
                                       "head_dim",        "rope_base",        "rope_table", "dilations",
                                       "decoder_strides", "encoder_strides",  "window_pre", "window_post",
                                       "window_encoder",  "quantizer_strides"};
    char words[64];
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        snprintf(words, sizeof words, "metadata '%s' is missing", keys[i]);
        with_metadata("metadata.safetensors", keys[i], NULL);
        expect_refusal("metadata.safetensors", TH_CODEC_DECODE, words);
        snprintf(words, sizeof words, "metadata '%s' is '8x'", keys[i]);
        with_metadata("metadata.safetensors", keys[i], "8x");
        expect_refusal("metadata.safetensors", TH_CODEC_DECODE, words);
    }
    static const char *const windows[] = {"0", "-1", "", "65537", "99999999999999999999999"};
    for (size_t i = 0; i < sizeof windows / sizeof *windows; i++) {
        with_metadata("metadata.safetensors", "window_pre", windows[i]);
        expect_refusal("metadata.safetensors", TH_CODEC_DECODE, "window_pre");
    }
    with_metadata("metadata.safetensors", "window_encoder", "16");
    struct th_codec *codec = must_open("metadata.safetensors", TH_CODEC_DECODE);
    assert_int_equal(codec->encoder.transformer.window, 16);
    assert_int_equal(codec->decoder.post.window, 128);
    th_codec_close(codec);
}

static void test_converted_id(void **state)
{
    (void)state;
    char stated[65], hashed[65];
    open_id("codec.safetensors", stated);
    with_metadata("metadata.safetensors", "codec_id", NULL);
    open_id("metadata.safetensors", hashed);
    assert_int_equal(strlen(hashed), 64);
    assert_string_not_equal(stated, hashed);
    with_metadata("metadata.safetensors", "codec_id", "ABCD");
    expect_refusal("metadata.safetensors", TH_CODEC_DECODE, "codec_id");
}

static void test_conversion_leaves_nothing_behind(void **state)
{
    (void)state;
    char pth[SCRATCH_PATH], out[SCRATCH_PATH], part[SCRATCH_PATH];
    thespis_error error;
    struct stat about;
    scratch_path(pth, "broken.pth");
    scratch_path(out, "out.safetensors");
    scratch_path(part, "out.safetensors.part");
    struct parts parts = codec_parts();
    write_parts("broken.pth", &parts, (struct packing){.without = "decoder.model.5.alpha"});
    assert_int_equal(th_codec_convert(pth, out, &error), THESPIS_FORMAT);
    assert_int_not_equal(stat(out, &about), 0);
    assert_int_not_equal(stat(part, &about), 0);
    scratch_path(pth, "codec.safetensors");
    assert_int_equal(th_codec_convert(pth, out, &error), THESPIS_INVALID);
    assert_non_null(strstr(error.message, "converted already"));
    scratch_path(pth, "codec.pth");
    assert_int_equal(th_codec_convert(pth, "/nonexistent/x.safetensors", &error), THESPIS_IO);
    assert_int_equal(th_codec_convert(pth, "/dev/full", &error), THESPIS_IO);
    assert_int_not_equal(stat(out, &about), 0);
    drop_parts(&parts);
}

/* ---- shortage, damage -------------------------------------------------------------------------------------------------------- */

static void test_every_failing_allocation(void **state)
{
    (void)state;
    char pth[SCRATCH_PATH], out[SCRATCH_PATH];
    thespis_error error;
    scratch_path(pth, "codec.pth");
    scratch_path(out, "fault.safetensors");
    for (long n = 1;; n++) {
        th_memory_fail_from(n);
        thespis_status status = th_codec_convert(pth, out, &error);
        th_memory_fail_from(0);
        if (status == THESPIS_OK) {
            if (n == 1) skip(); /* built without planted faults */
            assert_true(n > 20);
            break;
        }
        struct stat about;
        assert_int_equal(status, THESPIS_MEMORY);
        assert_int_not_equal(stat(out, &about), 0);
    }
    for (long n = 1;; n++) {
        struct th_codec *codec;
        th_memory_fail_from(n);
        thespis_status status = th_codec_open(out, TH_CODEC_BOTH, &codec, &error);
        th_memory_fail_from(0);
        if (status == THESPIS_OK) {
            th_codec_close(codec);
            return;
        }
        assert_int_equal(status, THESPIS_MEMORY);
        assert_null(codec);
    }
}

/* Flips bytes of the file in place: half of them where the pickle or the header lies, half near the end. */
static void damage(const char *name, int rounds, size_t head, size_t tail)
{
    char path[SCRATCH_PATH];
    uint64_t seed = 3;
    scratch_path(path, name);
    int fd = open(path, O_RDWR), accepted = 0;
    assert_true(fd >= 0);
    size_t bytes = (size_t)lseek(fd, 0, SEEK_END);
    for (int i = 0; i < rounds; i++) {
        size_t at = i % 2 ? chance(&seed) % head : bytes - 1 - chance(&seed) % tail;
        uint8_t old, changed;
        struct th_codec *codec;
        thespis_error error;
        assert_int_equal(pread(fd, &old, 1, (off_t)at), 1);
        changed = (uint8_t)(old ^ (1 + chance(&seed) % 255));
        assert_int_equal(pwrite(fd, &changed, 1, (off_t)at), 1);
        if (open_codec(name, TH_CODEC_BOTH, &codec, &error) == THESPIS_OK) {
            accepted++;
            th_codec_close(codec);
        } else
            assert_true(error.message[0] != '\0');
        assert_int_equal(pwrite(fd, &old, 1, (off_t)at), 1);
    }
    close(fd);
    assert_true(accepted < rounds);
    th_codec_close(must_open(name, TH_CODEC_BOTH));
}

static void test_random_damage(void **state)
{
    (void)state;
    struct parts parts = codec_parts();
    write_parts("damage.pth", &parts, (struct packing){.shared = 1});
    damage("damage.pth", 600, 60000, 1000);
    drop_parts(&parts);
    must_convert("codec.pth", "damage.safetensors");
    damage("damage.safetensors", 200, 30000, 1000);
}

static void test_truncations(void **state)
{
    (void)state;
    char path[SCRATCH_PATH];
    struct parts parts = codec_parts();
    write_parts("short.pth", &parts, (struct packing){.shared = 1});
    scratch_path(path, "short.pth");
    struct stat about;
    assert_int_equal(stat(path, &about), 0);
    for (off_t n = about.st_size - 1; n > about.st_size - 700; n--) {
        struct th_codec *codec;
        thespis_error error;
        assert_int_equal(truncate(path, n), 0);
        assert_int_equal(open_codec("short.pth", TH_CODEC_BOTH, &codec, &error), THESPIS_FORMAT);
    }
    drop_parts(&parts);
    scratch_text("empty", "");
    expect_refusal("empty", TH_CODEC_BOTH, "neither");
    scratch_text("text", "hello, this is no codec");
    expect_refusal("text", TH_CODEC_BOTH, "neither");
}

/* The checkpoint that comes with the sources. */
static void test_stage_codec(void **state)
{
    (void)state;
    struct th_codec *codec;
    thespis_error error = {0};
    if (th_codec_open(TEST_SOURCE_DIR "/models/stage/codec.pth", TH_CODEC_BOTH, &codec, &error) != THESPIS_OK)
        fail_msg("%s", error.message);
    assert_int_equal(codec->latent, codec->decoder.first.in);
    assert_true(codec->books > 1 && codec->code_width == 8);
    char out[SCRATCH_PATH];
    scratch_path(out, "stage.safetensors");
    assert_int_equal(th_codec_convert(TEST_SOURCE_DIR "/models/stage/codec.pth", out, &error), THESPIS_OK);
    struct th_codec *folded = must_open("stage.safetensors", TH_CODEC_BOTH);
    expect_equal_codecs(codec, folded);
    th_codec_close(folded);
    th_codec_close(codec);
}

int main(void)
{
    /* Later tests read what the first and test_converts left in the folder. */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_folds),
        cmocka_unit_test(test_halves),
        cmocka_unit_test(test_gathers_and_aligns),
        cmocka_unit_test(test_never_touches_the_buffers),
        cmocka_unit_test(test_every_missing_tensor),
        cmocka_unit_test(test_every_misshapen_tensor),
        cmocka_unit_test(test_extra_tensors),
        cmocka_unit_test(test_holes),
        cmocka_unit_test(test_either_spelling_but_not_both),
        cmocka_unit_test(test_other_types),
        cmocka_unit_test(test_widths),
        cmocka_unit_test(test_bad_values),
        cmocka_unit_test(test_zero_norm),
        cmocka_unit_test(test_id),
        cmocka_unit_test(test_converts),
        cmocka_unit_test(test_metadata),
        cmocka_unit_test(test_converted_id),
        cmocka_unit_test(test_conversion_leaves_nothing_behind),
        cmocka_unit_test(test_every_failing_allocation),
        cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_truncations),
        cmocka_unit_test(test_stage_codec),
    };
    return cmocka_run_group_tests(tests, scratch_make, scratch_remove);
}
