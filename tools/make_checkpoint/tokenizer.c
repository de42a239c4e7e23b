/* tokenizer.c - tokenizer.json: a byte-level BPE vocabulary, the structural tokens and the semantic band. */
#include <stdio.h>
#include <string.h>

#include "make_checkpoint.h"

static const char *const patterns[] = {
    [TH_REGEX_QWEN2] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
                       "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
    [TH_REGEX_QWEN3_5] =
        "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
        "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
};

struct builder {
    json_t *vocab, *merges, *added; /* NULL: only ids are counted */
    int next;                       /* id of the next token */
};

static int add_special(struct builder *b, const char *content)
{
    if (b->added != NULL)
        json_array_append_new(b->added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", b->next, "content", content,
                                                  "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special", 1));
    return b->next++;
}

static void add_text(struct builder *b, const char *token)
{
    if (json_object_get(b->vocab, token) == NULL) json_object_set_new(b->vocab, token, json_integer(b->next++));
}

/* The byte alphabet in the order of its code points: bytes that stand for themselves, then the others. */
static void add_bytes(struct builder *b)
{
    for (int moved = 0; moved < 2; moved++)
        for (int byte = 0; byte < 256; byte++) {
            char symbol[4];
            th_byte_symbol(byte, symbol);
            int is_moved = (unsigned char)symbol[0] >= 0xc4; /* U+0100 and above */
            if (is_moved == moved) add_text(b, symbol);
        }
}

/* Bytes, merges, and up to first_added tokens that no merge produces, so that ids lie where a big vocabulary has them. */
static thespis_status add_text_vocabulary(struct builder *b, const struct th_preset *preset, thespis_error *error)
{
    struct th_merges merges;
    TH_TRY(th_merges_train(preset->merges, &merges, error));
    add_bytes(b);
    for (int i = 0; i < merges.count; i++) {
        char both[128];
        snprintf(both, sizeof both, "%s%s", merges.left[i], merges.right[i]);
        add_text(b, both);
        json_array_append_new(b->merges, json_pack("[s, s]", merges.left[i], merges.right[i]));
    }
    th_merges_free(&merges);
    while (b->next < preset->first_added) {
        char filler[32];
        snprintf(filler, sizeof filler, "|unused%d|", b->next);
        add_text(b, filler);
    }
    return THESPIS_OK;
}

static void add_structure(struct builder *b)
{
    static const char *const modes[] = {"<|voice|>", "<|text|>", "<|interleave|>"};
    char name[32];
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) add_special(b, modes[i]);
    for (int i = 0; i < 16; i++) {
        snprintf(name, sizeof name, "<|speaker:%d|>", i);
        add_special(b, name);
    }
}

static void add_band(struct builder *b, const struct th_preset *preset, struct th_vocabulary *vocabulary)
{
    char name[32];
    for (int i = 0; b->next < preset->first_band; i++) {
        snprintf(name, sizeof name, "<|reserved:%d|>", i);
        add_special(b, name);
    }
    vocabulary->semantic_start = b->next;
    for (int i = 0; i < preset->band; i++) {
        snprintf(name, sizeof name, "<|semantic:%d|>", i);
        add_special(b, name);
    }
}

static void add_specials(struct builder *b, const struct th_preset *preset, struct th_vocabulary *vocabulary)
{
    vocabulary->pad = add_special(b, "<|endoftext|>");
    add_special(b, "<|im_start|>");
    if (!preset->eos_after_band) vocabulary->eos = add_special(b, "<|im_end|>");
    add_structure(b);
    add_band(b, preset, vocabulary);
    if (preset->eos_after_band) vocabulary->eos = add_special(b, "<|im_end|>");
}

static json_t *byte_level(int add_prefix_space, int trim_offsets, int use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", add_prefix_space, "trim_offsets",
                     trim_offsets, "use_regex", use_regex);
}

static json_t *file_json(const struct builder *b, const struct th_preset *preset)
{
    json_t *split = json_pack("{s:s, s:{s:s}, s:s, s:b}", "type", "Split", "pattern", "Regex", patterns[preset->regex], "behavior",
                              "Isolated", "invert", 0);
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:O, s:O}", "type", "BPE", "dropout", "unk_token",
                              "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges",
                              0, "vocab", b->vocab, "merges", b->merges);
    return json_pack("{s:s, s:n, s:n, s:O, s:{s:s}, s:{s:s, s:[o, o]}, s:o, s:o, s:o}", "version", "1.0", "truncation", "padding",
                     "added_tokens", b->added, "normalizer", "type", "NFC", "pre_tokenizer", "type", "Sequence", "pretokenizers",
                     split, byte_level(0, 1, 0), "post_processor", byte_level(1, 0, 1), "decoder", byte_level(1, 1, 1), "model",
                     model);
}

thespis_status th_tokenizer_make(const struct th_preset *preset, struct th_vocabulary *vocabulary, json_t **root,
                                 thespis_error *error)
{
    struct builder b = {.vocab = json_object(), .merges = json_array(), .added = json_array()};
    thespis_status status = add_text_vocabulary(&b, preset, error);
    if (status == THESPIS_OK) {
        add_specials(&b, preset, vocabulary);
        vocabulary->size = b.next;
        vocabulary->vocab = preset->vocab > 0 ? preset->vocab : (b.next + 127) / 64 * 64; /* always some rows to spare */
        if (root != NULL) *root = file_json(&b, preset);
        if (root != NULL && *root == NULL) status = th_fail_memory(error, "tokenizer.json", 0);
    }
    json_decref(b.vocab);
    json_decref(b.merges);
    json_decref(b.added);
    return status;
}
