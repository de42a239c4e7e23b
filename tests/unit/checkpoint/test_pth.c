/* test_pth.c - torch archives: what is read, and that everything else is refused without harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/memory.h"
#include "checkpoint/pickle.h"
#include "checkpoint/pth.h"
#include "unit/checkpoint/pth_builder.h"

/* Twelve floats 0, 1, 2, ... under key "0", eight bytes under "1". */
static const float floats[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static const uint8_t octets[8] = {1, 0, 1, 1, 0, 0x80, 0x3F, 7};

static void add_storages(struct zipper *z)
{
    zip_add(z, "a/byteorder", "little", 6);
    zip_add(z, "a/data/0", floats, sizeof floats);
    zip_add(z, "a/data/1", octets, sizeof octets);
}

/* The archive of a finished pickle, which is dropped. */
static struct bytes archive(struct bytes *pickle)
{
    struct zipper z = {0};
    zip_add(&z, "a/data.pkl", pickle->at, pickle->count);
    add_storages(&z);
    zip_finish(&z, 1);
    drop(pickle);
    return z.out;
}

static struct bytes raw_pickle(const char *data, size_t count)
{
    struct bytes p = {0};
    pickle_begin(&p);
    put(&p, data, count);
    return p;
}

/* Reads and closes; the message goes to `error`. */
static thespis_status try_file(const struct bytes *file, thespis_error *error)
{
    struct th_pth pth;
    memset(error, 0, sizeof *error);
    thespis_status status = th_pth_read(file->at, file->count, "x.pth", &pth, error);
    if (status == THESPIS_OK) th_pth_close(&pth);
    return status;
}

static void expect_refusal(const char *what, struct bytes *file, const char *words)
{
    thespis_error error;
    thespis_status status = try_file(file, &error);
    if (status != THESPIS_FORMAT || strstr(error.message, words) == NULL)
        fail_msg("%s: status %d, message '%s' lacks '%s'", what, (int)status, error.message, words);
    drop(file);
}

static void expect_bad_pickle(const char *what, const char *data, size_t count, const char *words)
{
    struct bytes pickle = raw_pickle(data, count), file = archive(&pickle);
    expect_refusal(what, &file, words);
}

static struct view floats_view(int rank, int64_t a, int64_t b, int64_t stride_a, int64_t stride_b, int64_t offset)
{
    return (struct view){.type = "FloatStorage",
                         .key = "0",
                         .count = 12,
                         .offset = offset,
                         .rank = rank,
                         .shape = {a, b},
                         .strides = {stride_a, stride_b}};
}

/* A dict of one tensor "t". */
static struct bytes one_tensor(const struct view *view)
{
    struct bytes p = {0};
    pickle_begin(&p);
    put(&p, "}", 1);
    pickle_text(&p, "t");
    pickle_tensor(&p, view);
    put(&p, "s.", 2);
    return archive(&p);
}

/* ---- what is read ------------------------------------------------------------------------------------------------------------ */

static void put_entry(struct bytes *p, const char *name, const struct view *view)
{
    pickle_text(p, name);
    pickle_tensor(p, view);
}

static struct bytes rich_pickle(void)
{
    struct view plain = floats_view(2, 3, 4, 4, 1, 0), turned = floats_view(2, 4, 3, 1, 4, 0), part = floats_view(1, 3, 0, 2, 0, 5);
    struct view scalar = floats_view(0, 0, 0, 0, 0, 7);
    int64_t four = 4, eight = 8;
    struct view bf16 = whole("BFloat16Storage", "1", 1, &four), flags = whole("BoolStorage", "1", 1, &eight);
    struct bytes p = {0};
    pickle_begin(&p);
    pickle_ordered(&p);
    put(&p, "q\x05(", 3);
    put_entry(&p, "plain", &plain);
    put_entry(&p, "turned", &turned);
    put_entry(&p, "part", &part);
    put_entry(&p, "scalar", &scalar);
    put_entry(&p, "bf16", &bf16);
    put_entry(&p, "flags", &flags);
    pickle_text(&p, "parameter");
    pickle_global(&p, "torch._utils", "_rebuild_parameter");
    put(&p, "(", 1);
    pickle_tensor(&p, &plain);
    put(&p, "\x88", 1);
    pickle_ordered(&p);
    put(&p, "tRu", 3);
    /* Attributes of the dict, among them a list and a memoised value, are read and dropped. */
    put(&p, "}", 1);
    pickle_text(&p, "_metadata");
    static const char list[] = "]r\x00\x01\x00\x00Na(K\x01K\x02"
                               "ej\x00\x01\x00\x00h\x05\x87sb.";
    put(&p, list, sizeof list - 1);
    return p;
}

static void expect_floats(const struct th_pth *pth, const char *name, int rank, const float *expected, int count, int contiguous)
{
    float got[12];
    const struct th_pth_tensor *tensor = th_pth_find(pth, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, TH_F32);
    assert_int_equal(tensor->rank, rank);
    assert_int_equal(tensor->items, count);
    assert_int_equal(tensor->contiguous, contiguous);
    th_pth_gather(tensor, got);
    assert_memory_equal(got, expected, (size_t)count * sizeof *got);
}

static void test_reads_every_kind(void **state)
{
    (void)state;
    static const float turned[12] = {0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11}, part[3] = {5, 7, 9}, scalar[1] = {7};
    struct bytes pickle = rich_pickle(), file = archive(&pickle);
    struct th_pth pth;
    thespis_error error = {0};
    thespis_status status = th_pth_read(file.at, file.count, "x.pth", &pth, &error);
    if (status != THESPIS_OK) fail_msg("%s", error.message);
    assert_int_equal(pth.count, 7);
    expect_floats(&pth, "plain", 2, floats, 12, 1);
    expect_floats(&pth, "parameter", 2, floats, 12, 1);
    expect_floats(&pth, "turned", 2, turned, 12, 0);
    expect_floats(&pth, "part", 1, part, 3, 0);
    expect_floats(&pth, "scalar", 0, scalar, 1, 1);
    assert_int_equal(th_pth_find(&pth, "bf16")->dtype, TH_BF16);
    assert_int_equal(th_pth_find(&pth, "flags")->items, 8);
    assert_null(th_pth_find(&pth, "absent"));
    assert_int_equal(th_pth_find(&pth, "plain")->storage->crc, checksum((const uint8_t *)floats, sizeof floats));
    th_pth_close(&pth);
    drop(&file);
}

/* {"state_dict": {names...}} or, when not wrapped, {names...}; every value is the same tensor. */
static struct bytes named(int wrapped, const char *const *names, int count)
{
    struct view view = floats_view(1, 12, 0, 1, 0, 0);
    struct bytes p = {0};
    pickle_begin(&p);
    if (wrapped) {
        put(&p, "}", 1);
        pickle_text(&p, "epoch");
        put(&p, "K\x03s", 3);
        pickle_text(&p, "state_dict");
    }
    put(&p, "}(", 2);
    for (int i = 0; i < count; i++) put_entry(&p, names[i], &view);
    put(&p, wrapped ? "us." : "u.", wrapped ? 3 : 2);
    return archive(&p);
}

static void test_unwraps_training_checkpoints(void **state)
{
    (void)state;
    static const char *const names[] = {"generator.a.weight", "discriminator.b", "generator.c.generator.d"};
    for (int wrapped = 0; wrapped < 2; wrapped++) {
        struct bytes file = named(wrapped, names, 3);
        struct th_pth pth;
        assert_int_equal(th_pth_read(file.at, file.count, "x.pth", &pth, NULL), THESPIS_OK);
        assert_int_equal(pth.count, 2);
        assert_non_null(th_pth_find(&pth, "a.weight"));
        assert_non_null(th_pth_find(&pth, "c.d"));
        th_pth_close(&pth);
        drop(&file);
    }
}

static void test_refuses_names(void **state)
{
    (void)state;
    static const char *const twice[] = {"a", "b", "a"}, *const merged[] = {"generator.a", "generator.generator.a"};
    static const char *const bare[] = {"generator."}, *const odd[] = {"a b"}, *const none[] = {""};
    static const struct {
        const char *const *names;
        int count;
        const char *words;
    } cases[] = {{twice, 3, "'a' appears twice"},
                 {merged, 2, "'a' appears twice"},
                 {bare, 1, "no name"},
                 {odd, 1, "a b"},
                 {none, 1, "printable"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes file = named(0, cases[i].names, cases[i].count);
        expect_refusal(cases[i].words, &file, cases[i].words);
    }
}

/* ---- pickles ----------------------------------------------------------------------------------------------------------------- */

static void test_refuses_every_other_opcode(void **state)
{
    (void)state;
    static const uint8_t allowed[] = {0x80, 0x2E, 0x28, 0x29, 0x74, 0x85, 0x86, 0x87, 0x7D, 0x73, 0x75, 0x5D, 0x61, 0x65, 0x4B,
                                      0x4D, 0x4A, 0x8A, 0x58, 0x88, 0x89, 0x4E, 0x71, 0x72, 0x68, 0x6A, 0x63, 0x51, 0x52, 0x62};
    int refused = 0;
    for (int opcode = 0; opcode < 256; opcode++) {
        if (memchr(allowed, opcode, sizeof allowed) != NULL) continue;
        char words[32], data[] = {'}', (char)opcode, 'K', 0, 0, 0, 0, 0, 0, '\n', '\n', '.'};
        snprintf(words, sizeof words, "opcode 0x%02X is not", (unsigned)opcode);
        expect_bad_pickle(words, data, sizeof data, words);
        refused++;
    }
    assert_int_equal(refused, 226);
    /* PROTO is accepted as the first opcode only. */
    expect_bad_pickle("second PROTO", "}\x80\x02.", 4, "opcode 0x80 is not");
}

static void test_refuses_other_globals(void **state)
{
    (void)state;
    static const char *const names[][2] = {{"os", "system"},
                                           {"builtins", "eval"},
                                           {"torch", "DoubleStorage"},
                                           {"torch", "FloatStorag"},
                                           {"torch", "FloatStorage2"},
                                           {"torch ", "FloatStorage"},
                                           {"torch._utils", "_rebuild_tensor"},
                                           {"torch._utils", "OrderedDict"},
                                           {"", ""},
                                           {"torch.storage", "UntypedStorage"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct bytes pickle = {0};
        pickle_begin(&pickle);
        pickle_global(&pickle, names[i][0], names[i][1]);
        put(&pickle, ".", 1);
        struct bytes file = archive(&pickle);
        expect_refusal(names[i][1], &file, "is not accepted");
    }
    expect_bad_pickle("global without end", "ctorch\nFloatStorage.", 20, "does not end");
    expect_bad_pickle("global in one line", "ctorch.", 7, "does not end");
}

#define BAD(text, words)                                                                                                           \
    {                                                                                                                              \
        text, sizeof text - 1, words                                                                                               \
    }

static void test_refuses_bad_pickles(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        size_t count;
        const char *words;
    } cases[] = {
        BAD("", "ends inside"),
        BAD("}", "ends inside"),
        BAD(".", "empty stack"),
        BAD("}}.", "left on the stack"),
        BAD("}.x", "follow the end"),
        BAD("(.", "a mark stands"),
        BAD("N.", "dictionary"),
        BAD("K", "ends inside"),
        BAD("M\x01", "ends inside"),
        BAD("J\x01\x01\x01", "ends inside"),
        BAD("X\x05\x00\x00\x00"
            "abc",
            "ends inside"),
        BAD("X\xFF\xFF\xFF\xFF"
            "abc.",
            "ends inside"),
        BAD("\x8A\x09\x00\x00\x00\x00\x00\x00\x00\x00\x00.", "more than 8"),
        BAD("\x8A\x05\x00.", "ends inside"),
        BAD("t.", "mark is missing"),
        BAD("u.", "mark is missing"),
        BAD("}(K\x01.", "left on the stack"),
        BAD("}(K\x01u.", "no value"),
        BAD("(K\x01K\x02u.", "no dict"),
        BAD("N(K\x01K\x02u.", "no dict"),
        BAD("K\x01K\x02s.", "no dict"),
        BAD("s.", "empty stack"),
        BAD("}K\x01(s.", "mark"),
        BAD("}(K\x01(u.", "no dict"),
        BAD("}K\x01"
            "a.",
            "no list"),
        BAD("](\x85.", "mark"),
        BAD("\x85.", "empty stack"),
        BAD("N\x86.", "empty stack"),
        BAD("e.", "mark is missing"),
        BAD("(e.", "no list"),
        BAD("h\x00.", "never set"),
        BAD("q\x00.", "empty stack"),
        BAD("(q\x00.", "a mark stands"),
        BAD("}r\x04\x00\x00\x00h\x03.", "never set"),
        BAD("}r\x00\x00\x10\x00.", "above 1048575"),
        BAD("}r\xFF\xFF\xFF\xFF.", "above 1048575"),
        BAD("Q.", "empty stack"),
        BAD("NQ.", "persistent id"),
        BAD("NNNNN(NNNNNtQ.", "persistent id"),
        BAD("R.", "empty stack"),
        BAD("N)R.", "cannot be called"),
        BAD("ctorch\nFloatStorage\n)R.", "cannot be called"),
        BAD("ccollections\nOrderedDict\nNR.", "no tuple"),
        BAD("ccollections\nOrderedDict\nN\x85R.", "with arguments"),
        BAD("ctorch._utils\n_rebuild_tensor_v2\n)R.", "neither 6 nor 7"),
        BAD("ctorch._utils\n_rebuild_tensor_v2\n(NNNNNNtR.", "no storage"),
        BAD("ctorch._utils\n_rebuild_parameter\n(NNNtR.", "no tensor"),
        BAD("}}b.", "BUILD is"),
        BAD("ccollections\nOrderedDict\n)RNb.", "BUILD is"),
        BAD("}K\x01Ns.", "no text"),
        BAD("}X\x01\x00\x00\x00tNs.", "no tensor"),
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_bad_pickle(cases[i].words, cases[i].data, cases[i].count, cases[i].words);
    struct bytes pickle = {0};
    put(&pickle, "\x80\x04}.", 4);
    struct bytes file = archive(&pickle);
    expect_refusal("protocol 4", &file, "protocol 2");
}

static void test_bounds_stack_memo_and_length(void **state)
{
    (void)state;
    struct bytes p = {0};
    pickle_begin(&p);
    for (int i = 0; i < 70000; i++) put(&p, "N", 1);
    struct bytes file = archive(&p);
    expect_refusal("deep stack", &file, "deeper than 65536");
    pickle_begin(&p);
    for (int i = 0; i < 70000; i++) put(&p, "(", 1);
    file = archive(&p);
    expect_refusal("many marks", &file, "deeper than 65536");
    /* A tuple in a tuple in a tuple: nothing recurses. */
    pickle_begin(&p);
    put(&p, "}", 1);
    for (int i = 0; i < 200000; i++) put(&p, "\x85", 1);
    put(&p, ".", 1);
    file = archive(&p);
    expect_refusal("deep tuples", &file, "dictionary");
    pickle_begin(&p);
    put(&p, "}", 1);
    for (int i = 0; i < (1 << 22); i++) put(&p, "q\x00", 2);
    file = archive(&p);
    expect_refusal("many opcodes", &file, "4194304 opcodes");
    /* A dict that holds itself. */
    expect_bad_pickle("cycle", "}q\x00X\x0A\x00\x00\x00state_dicth\x00s.", 22, "no tensor");
}

static void test_highest_memo_slot(void **state)
{
    (void)state;
    struct bytes pickle = raw_pickle("}r\xFF\xFF\x0F\x00.", 7), file = archive(&pickle);
    thespis_error error;
    assert_int_equal(try_file(&file, &error), THESPIS_OK);
    drop(&file);
}

static void test_integers_of_every_width(void **state)
{
    (void)state;
    static const struct {
        const char *data;
        size_t count;
        int64_t value;
    } cases[] = {{"K\xFF.", 3, 255},
                 {"M\xFF\xFF.", 4, 65535},
                 {"J\xFF\xFF\xFF\xFF.", 6, -1},
                 {"J\x00\x00\x00\x80.", 6, INT32_MIN},
                 {"\x8A\x00.", 3, 0},
                 {"\x8A\x01\xFF.", 4, -1},
                 {"\x8A\x05\x00\x00\x00\x00\x01.", 8, (int64_t)1 << 32},
                 {"\x8A\x08\x00\x00\x00\x00\x00\x00\x00\x80.", 11, INT64_MIN}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes p = raw_pickle(cases[i].data, cases[i].count);
        struct th_pickle pickle;
        assert_int_equal(th_pickle_read(p.at, p.count, "x", &pickle, NULL), THESPIS_OK);
        assert_int_equal(pickle.top.kind, TH_PICKLE_INT);
        assert_true(pickle.top.number == cases[i].value);
        th_pickle_close(&pickle);
        drop(&p);
    }
}

/* ---- views ------------------------------------------------------------------------------------------------------------------- */

static void test_refuses_views(void **state)
{
    (void)state;
    const int64_t big = (int64_t)1 << 62, half = (int64_t)1 << 32;
    struct {
        struct view view;
        const char *words;
    } cases[] = {
        {floats_view(1, 13, 0, 1, 0, 0), "outside of its storage"},
        {floats_view(1, 12, 0, 1, 0, 1), "outside of its storage"},
        {floats_view(2, 3, 4, 5, 1, 0), "outside of its storage"},
        {floats_view(1, 1, 0, 1, 0, 12), "outside of its storage"},
        {floats_view(2, 12, 2, 1, 0, 0), "outside of its storage"},
        {floats_view(2, half, half, 0, 0, 0), "overflows"},
        {floats_view(2, half, half, 1, half, 0), "overflows"},
        {floats_view(1, big, 0, big, 0, 0), "overflows"},
        {floats_view(1, 2, 0, INT64_MAX, 0, 1), "overflows"},
        {floats_view(1, 1, 0, 1, 0, INT64_MAX), "outside of its storage"},
        {floats_view(1, 0, 0, 1, 0, 0), "positive integers"},
        {floats_view(1, -1, 0, 1, 0, 0), "positive integers"},
        {floats_view(1, 2, 0, -1, 0, 5), "strides"},
        {floats_view(1, 2, 0, 1, 0, -1), "offset"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes file = one_tensor(&cases[i].view);
        expect_refusal(cases[i].words, &file, cases[i].words);
    }
    struct view view = {
        .type = "FloatStorage", .key = "0", .count = 12, .rank = 5, .shape = {1, 1, 1, 1, 1}, .strides = {1, 1, 1, 1, 1}};
    struct bytes file = one_tensor(&view);
    expect_refusal("rank 5", &file, "at most 4");
    view.rank = 2, view.stride_rank = 1;
    file = one_tensor(&view);
    expect_refusal("ranks differ", &file, "different lengths");
}

static void test_refuses_storages(void **state)
{
    (void)state;
    static const struct {
        const char *type, *key;
        int64_t count;
        const char *words;
    } cases[] = {{"FloatStorage", "2", 12, "'data/2', which is missing"},
                 {"FloatStorage", "../0", 12, "missing"},
                 {"FloatStorage", "", 12, "key"},
                 {"FloatStorage", "0123456789012345678901234567890123456789012345678901234567890123456789", 12, "key"},
                 {"FloatStorage", "0", 11, "needs 11 items"},
                 {"FloatStorage", "0", 13, "needs 13 items"},
                 {"FloatStorage", "0", -1, "count"},
                 {"FloatStorage", "0", INT64_MAX, "needs"},
                 {"FloatStorage", "0", ((int64_t)1 << 62) + 12, "needs"},
                 {"HalfStorage", "0", 12, "needs 12 items"},
                 {"LongStorage", "0", 12, "needs 12 items"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct view view = {
            .type = cases[i].type, .key = cases[i].key, .count = cases[i].count, .rank = 1, .shape = {1}, .strides = {1}};
        struct bytes file = one_tensor(&view);
        expect_refusal(cases[i].words, &file, cases[i].words);
    }
}

/* ---- archives ---------------------------------------------------------------------------------------------------------------- */

static struct bytes good_pickle(void)
{
    struct view view = floats_view(2, 3, 4, 4, 1, 0);
    struct bytes p = {0};
    pickle_begin(&p);
    put(&p, "}(", 2);
    put_entry(&p, "one", &view);
    put_entry(&p, "two", &view);
    put(&p, "u.", 2);
    return p;
}

/* A good archive but for the fault of its entry "a/data/1". */
static struct bytes faulty(struct zip_fault fault, int zip64)
{
    struct zipper z = {0};
    struct bytes pickle = good_pickle();
    zip_add(&z, "a/data.pkl", pickle.at, pickle.count);
    drop(&pickle);
    zip_add(&z, "a/byteorder", "little", 6);
    zip_add(&z, "a/data/0", floats, sizeof floats);
    z.fault = fault;
    zip_add(&z, "a/data/1", octets, sizeof octets);
    zip_finish(&z, zip64);
    return z.out;
}

static void test_reads_both_kinds_of_zip(void **state)
{
    (void)state;
    for (int zip64 = 0; zip64 < 2; zip64++)
        for (int wide = 0; wide < 2; wide++) {
            struct bytes file = faulty((struct zip_fault){.wide = wide, .local_size = wide ? UINT32_MAX : 8}, zip64);
            thespis_error error;
            thespis_status status = try_file(&file, &error);
            if (status != THESPIS_OK) fail_msg("zip64 %d, wide %d: %s", zip64, wide, error.message);
            drop(&file);
        }
}

static void test_refuses_entries(void **state)
{
    (void)state;
    static const struct {
        struct zip_fault fault;
        const char *words;
    } cases[] = {
        {{.method = 8}, "'a/data/1' is compressed (method 8)"},
        {{.local_method = 8}, "'a/data/1' is compressed (method 8)"},
        {{.flags = 0x0001}, "'a/data/1' is encrypted"},
        {{.flags = 0x0041}, "encrypted"},
        {{.flags = 0x2000}, "encrypted"},
        {{.disk = 1}, "several disks"},
        {{.local_name = "a/data/2"}, "another name"},
        {{.local_size = 7}, "7 bytes in its own header"},
        {{.size = 4000}, "reaches past the data"},
        {{.size = 0xFFFFFFFE}, "reaches past the data"},
        {{.size = UINT64_MAX, .wide = 1}, "reaches past the data"},
        {{.size = UINT64_MAX - 63, .wide = 1}, "reaches past the data"},
        {{.offset = 1}, "no entry begins"},
        {{.offset = 0x7FFFFFFF}, "no entry begins"},
        {{.offset = UINT64_MAX, .wide = 1}, "no entry begins"},
        {{.offset = UINT64_MAX - 29, .wide = 1}, "no entry begins"},
        {{.short_wide = 1}, "does not hold them"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes file = faulty(cases[i].fault, 1);
        expect_refusal(cases[i].words, &file, cases[i].words);
    }
}

static void test_refuses_overlaps_and_duplicates(void **state)
{
    (void)state;
    struct zipper z = {0};
    struct bytes pickle = good_pickle(), inner = {0};
    zip_add(&z, "a/data.pkl", pickle.at, pickle.count);
    zip_add(&z, "a/data/0", floats, sizeof floats);
    zip_add(&z, "a/data/0", floats, sizeof floats);
    zip_finish(&z, 0);
    expect_refusal("duplicate", &z.out, "'a/data/0' appears twice");
    /* Two entries of the directory for one local header. */
    z = (struct zipper){0};
    zip_add(&z, "a/data.pkl", pickle.at, pickle.count);
    zip_add(&z, "a/data/0", floats, sizeof floats);
    put_central(&z, "a/data/0", sizeof floats, z.last_offset, 0);
    z.entries++;
    zip_finish(&z, 0);
    expect_refusal("shared header", &z.out, "overlap");
    /* An entry whose payload holds a whole other entry. */
    z = (struct zipper){0};
    zip_add(&z, "b", "tiny", 4);
    put(&inner, z.out.at, z.out.count);
    drop(&z.out);
    drop(&z.directory);
    z = (struct zipper){0};
    zip_add(&z, "a/data.pkl", pickle.at, pickle.count);
    zip_add(&z, "outer", inner.at, inner.count);
    put_central(&z, "b", 4, z.out.count - inner.count, 0);
    z.entries++;
    zip_finish(&z, 0);
    expect_refusal("nested", &z.out, "overlap");
    drop(&inner);
    drop(&pickle);
}

static void test_refuses_layouts(void **state)
{
    (void)state;
    struct zipper z = {0};
    struct bytes pickle = good_pickle();
    zip_add(&z, "a/data", "x", 1);
    zip_finish(&z, 0);
    expect_refusal("no pickle", &z.out, "without 'FOLDER/data.pkl'");
    z = (struct zipper){0};
    zip_add(&z, "a/b/data.pkl", pickle.at, pickle.count);
    zip_finish(&z, 0);
    expect_refusal("pickle too deep", &z.out, "without 'FOLDER/data.pkl'");
    z = (struct zipper){0};
    zip_add(&z, "a/data.pkl", pickle.at, pickle.count);
    zip_add(&z, "b/data.pkl", pickle.at, pickle.count);
    zip_finish(&z, 0);
    expect_refusal("two pickles", &z.out, "two pickles");
    z = (struct zipper){0};
    zip_add(&z, "a/data.pkl", pickle.at, pickle.count);
    zip_add(&z, "a/byteorder", "big", 3);
    zip_finish(&z, 0);
    expect_refusal("big end first", &z.out, "byte order is 'big'");
    z = (struct zipper){0};
    zip_finish(&z, 0);
    expect_refusal("no entries", &z.out, "without 'FOLDER/data.pkl'");
    z = (struct zipper){0};
    zip_add(&z, "", "x", 1);
    zip_finish(&z, 0);
    expect_refusal("no name", &z.out, "has no name");
    struct bytes bare = good_pickle(), text = {0}, nothing = {0};
    expect_refusal("bare pickle", &bare, "bare pickle");
    put(&text, "hello", 5);
    expect_refusal("text", &text, "no zip archive");
    expect_refusal("nothing", &nothing, "no zip archive");
    drop(&pickle);
}

/* Fields of the end records, each set to a value that must not be believed. */
static void test_refuses_end_records(void **state)
{
    (void)state;
    static const struct {
        int zip64;
        size_t from_end, width;
        uint64_t value;
        const char *words;
    } cases[] = {
        {0, 18, 2, 1, "several disks"},
        {0, 16, 2, 1, "several disks"},
        {0, 14, 2, 3, "several disks"},
        {0, 10, 4, 0xFFFFFF, "outside of the file"},
        {0, 6, 4, 0x7FFFFFFF, "outside of the file"},
        {0, 10, 4, 10, "entries in a directory of 10 bytes"},
        {0, 2, 2, 5, "no zip directory"},
        {1, 22 + 16, 4, 1, "several disks"},
        {1, 22 + 4, 4, 2, "several disks"},
        {1, 22 + 12, 8, 3, "zip64 locator"},
        {1, 22 + 12, 8, UINT64_MAX, "zip64 locator"},
        {1, 22 + 20 + 52, 8, 43, "states 43 bytes"},
        {1, 22 + 20 + 52, 8, UINT64_MAX, "states"},
        {1, 22 + 20 + 40, 4, 1, "several disks"},
        {1, 22 + 20 + 32, 8, 5, "several disks"},
        {1, 22 + 20 + 16, 8, UINT64_MAX, "outside of the file"},
        {1, 22 + 20 + 8, 8, UINT64_MAX, "outside of the file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bytes file = faulty((struct zip_fault){0}, cases[i].zip64);
        for (size_t k = 0; k < cases[i].width; k++)
            file.at[file.count - cases[i].from_end + k] = (uint8_t)(cases[i].value >> 8 * k);
        expect_refusal(cases[i].words, &file, cases[i].words);
    }
    /* More entries than the directory holds, and fewer. */
    for (int delta = -1; delta < 2; delta += 2) {
        struct bytes file = faulty((struct zip_fault){0}, 0);
        file.at[file.count - 14] = file.at[file.count - 12] = (uint8_t)(4 + delta);
        expect_refusal("count", &file, delta < 0 ? "follow the last entry" : "states 5 entries");
    }
}

/* ---- chance, shortage, files ------------------------------------------------------------------------------------------------- */

static void test_every_truncation(void **state)
{
    (void)state;
    struct bytes pickle = rich_pickle(), file = archive(&pickle);
    thespis_error error;
    assert_int_equal(try_file(&file, &error), THESPIS_OK);
    for (size_t n = 0; n < file.count; n++) {
        /* A copy of exactly n bytes, so that the sanitizer sees any read behind it. */
        struct bytes part = {malloc(n + 1), n, n};
        memcpy(part.at, file.at, n);
        part.at = realloc(part.at, n > 0 ? n : 1);
        if (try_file(&part, &error) == THESPIS_OK) fail_msg("%zu of %zu bytes were accepted", n, file.count);
        assert_true(error.message[0] != '\0');
        drop(&part);
    }
    drop(&file);
}

static void read_all(const struct th_pth *pth)
{
    for (size_t i = 0; i < pth->count; i++) {
        const struct th_pth_tensor *tensor = &pth->tensors[i];
        void *items = malloc((size_t)tensor->items * th_dtype_size(tensor->dtype));
        assert_non_null(items);
        th_pth_gather(tensor, items);
        free(items);
    }
}

static void test_random_damage(void **state)
{
    (void)state;
    struct bytes pickle = rich_pickle(), file = archive(&pickle);
    uint8_t *copy = malloc(file.count);
    uint64_t seed = 20;
    int accepted = 0, rounds = 30000;
    for (int i = 0; i < rounds; i++) {
        struct th_pth pth;
        thespis_error error = {0};
        memcpy(copy, file.at, file.count);
        for (uint32_t k = 0, n = 1 + chance(&seed) % 3; k < n; k++) {
            uint8_t *byte = &copy[chance(&seed) % file.count];
            *byte = chance(&seed) % 2 ? (uint8_t)chance(&seed) : (uint8_t)(*byte ^ 1u << chance(&seed) % 8);
        }
        if (th_pth_read(copy, file.count, "x.pth", &pth, &error) == THESPIS_OK) {
            read_all(&pth);
            th_pth_close(&pth);
            accepted++;
        } else
            assert_true(error.message[0] != '\0');
    }
    /* Padding, payloads, dates and names of tensors may change; most of the rest may not. */
    assert_in_range(accepted, 1, rounds - 1);
    free(copy);
    drop(&file);
}

static void test_every_failing_allocation(void **state)
{
    (void)state;
    struct bytes pickle = rich_pickle(), file = archive(&pickle);
    thespis_error error;
    for (long n = 1;; n++) {
        th_memory_fail_from(n);
        thespis_status status = try_file(&file, &error);
        th_memory_fail_from(0);
        if (status == THESPIS_OK) {
            drop(&file);
            if (n == 1) skip(); /* built without planted faults */
            assert_true(n > 8);
            return;
        }
        assert_int_equal(status, THESPIS_MEMORY);
    }
}

static void test_things_that_are_no_files(void **state)
{
    (void)state;
    struct th_pth pth;
    thespis_error error;
    assert_int_equal(th_pth_open("/nonexistent/codec.pth", &pth, &error), THESPIS_IO);
    assert_int_equal(th_pth_open("/tmp", &pth, &error), THESPIS_IO);
    assert_non_null(strstr(error.message, "folder"));
    assert_int_equal(th_pth_open("/dev/null", &pth, &error), THESPIS_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_every_kind),
        cmocka_unit_test(test_unwraps_training_checkpoints),
        cmocka_unit_test(test_refuses_names),
        cmocka_unit_test(test_refuses_every_other_opcode),
        cmocka_unit_test(test_refuses_other_globals),
        cmocka_unit_test(test_refuses_bad_pickles),
        cmocka_unit_test(test_bounds_stack_memo_and_length),
        cmocka_unit_test(test_highest_memo_slot),
        cmocka_unit_test(test_integers_of_every_width),
        cmocka_unit_test(test_refuses_views),
        cmocka_unit_test(test_refuses_storages),
        cmocka_unit_test(test_reads_both_kinds_of_zip),
        cmocka_unit_test(test_refuses_entries),
        cmocka_unit_test(test_refuses_overlaps_and_duplicates),
        cmocka_unit_test(test_refuses_layouts),
        cmocka_unit_test(test_refuses_end_records),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_random_damage),
        cmocka_unit_test(test_every_failing_allocation),
        cmocka_unit_test(test_things_that_are_no_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
