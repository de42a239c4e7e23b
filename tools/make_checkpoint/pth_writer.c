/* pth_writer.c - codec.pth as torch.save writes it: a zip of stored entries whose payloads start at multiples of 64 bytes, sizes
 * and CRCs behind each payload and in the central directory, and a pickle (protocol 2) that names the tensors. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "make_checkpoint.h"
#include "text.h"

#define TOP "codec/"
#define ALIGNMENT 64

/* ---- data.pkl ---------------------------------------------------------------------------------------------------------------- */

/* Strings and classes are written once and fetched from the memo afterwards. */
struct pickle {
    struct th_text text;
    unsigned memo;
    int rebuild, ordered, storage, device, storage_of[16]; /* memo numbers; -1: not yet written */
    thespis_error *error;
};

static void op(struct pickle *p, int code)
{
    th_text_integer(&p->text, (uint64_t)code, 1, p->error);
}

static int remember(struct pickle *p)
{
    op(p, p->memo < 256 ? 'q' : 'r');
    th_text_integer(&p->text, p->memo, p->memo < 256 ? 1 : 4, p->error);
    return (int)p->memo++;
}

static void fetch(struct pickle *p, int memo)
{
    op(p, memo < 256 ? 'h' : 'j');
    th_text_integer(&p->text, (uint64_t)memo, memo < 256 ? 1 : 4, p->error);
}

static int write_string(struct pickle *p, const char *value)
{
    op(p, 'X');
    th_text_integer(&p->text, strlen(value), 4, p->error);
    th_text_add(&p->text, value, strlen(value), p->error);
    return remember(p);
}

static void string_once(struct pickle *p, int *memo, const char *value)
{
    if (*memo >= 0)
        fetch(p, *memo);
    else
        *memo = write_string(p, value);
}

static void class_once(struct pickle *p, int *memo, const char *module, const char *name)
{
    if (*memo >= 0) {
        fetch(p, *memo);
        return;
    }
    th_text_format(&p->text, p->error, "c%s\n%s\n", module, name);
    *memo = remember(p);
}

static void write_integer(struct pickle *p, int64_t value)
{
    int bytes = value < 256 ? 1 : value < 65536 ? 2 : value < 0x80000000ll ? 4 : 8;
    op(p, bytes == 1 ? 'K' : bytes == 2 ? 'M' : bytes == 4 ? 'J' : 0x8a);
    if (bytes == 8) op(p, 8);
    th_text_integer(&p->text, (uint64_t)value, bytes, p->error);
}

static void write_tuple(struct pickle *p, const int64_t *values, int count)
{
    for (int i = 0; i < count; i++) write_integer(p, values[i]);
    op(p, 0x84 + count); /* TUPLE1 to TUPLE3 */
    remember(p);
}

static void empty_ordered(struct pickle *p)
{
    class_once(p, &p->ordered, "collections", "OrderedDict");
    op(p, ')');
    op(p, 'R');
    remember(p);
}

/* The persistent id of a storage: ("storage", class, key, device, items). */
static void write_storage(struct pickle *p, const struct th_recipe *recipe, size_t key)
{
    char name[32];
    const char *class = recipe->dtype == TH_F32 ? "FloatStorage" : recipe->dtype == TH_BF16 ? "BFloat16Storage" : "BoolStorage";
    op(p, '(');
    string_once(p, &p->storage, "storage");
    class_once(p, &p->storage_of[recipe->dtype], "torch", class);
    snprintf(name, sizeof name, "%zu", key);
    write_string(p, name);
    string_once(p, &p->device, "cpu");
    write_integer(p, recipe->rows * recipe->cols);
    op(p, 't');
    remember(p);
    op(p, 'Q');
}

static void write_tensor(struct pickle *p, const struct th_recipe *recipe, size_t key)
{
    int64_t strides[TH_TENSOR_MAX_RANK], stride = 1;
    for (int i = recipe->rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= recipe->shape[i];
    }
    write_string(p, recipe->name);
    class_once(p, &p->rebuild, "torch._utils", "_rebuild_tensor_v2");
    op(p, '(');
    write_storage(p, recipe, key);
    write_integer(p, 0);
    write_tuple(p, recipe->shape, recipe->rank);
    write_tuple(p, strides, recipe->rank);
    op(p, 0x89); /* requires_grad False */
    empty_ordered(p);
    op(p, 't');
    remember(p);
    op(p, 'R');
    remember(p);
}

/* What a module's state_dict() carries beside its tensors: versions by module. */
static void write_metadata(struct pickle *p)
{
    op(p, '}');
    remember(p);
    write_string(p, "_metadata");
    empty_ordered(p);
    op(p, '(');
    write_string(p, "");
    op(p, '}');
    remember(p);
    write_string(p, "version");
    write_integer(p, 1);
    op(p, 's');
    op(p, 'u');
    op(p, 's');
    op(p, 'b');
}

/* A plain dict, or with `metadata` the OrderedDict of a module. */
static thespis_status write_pickle(const struct th_recipes *list, int metadata, struct th_text *out, thespis_error *error)
{
    struct pickle p = {.rebuild = -1, .ordered = -1, .storage = -1, .device = -1, .error = error};
    for (size_t i = 0; i < sizeof p.storage_of / sizeof *p.storage_of; i++) p.storage_of[i] = -1;
    th_text_add(&p.text, "\x80\x02", 2, error);
    if (metadata) {
        empty_ordered(&p);
    } else {
        op(&p, '}');
        remember(&p);
    }
    op(&p, '(');
    for (size_t i = 0; i < list->count; i++) write_tensor(&p, &list->items[i], i);
    op(&p, 'u');
    if (metadata) write_metadata(&p);
    op(&p, '.');
    *out = p.text;
    return p.text.status;
}

/* ---- the zip ----------------------------------------------------------------------------------------------------------------- */

struct zip {
    struct th_stream *stream;
    struct th_text directory;
    uint64_t entries;
    thespis_error *error;
};

/* The local header: sizes and CRC are zero (flag bit 3), an extra field "FB" moves the payload to a multiple of 64. */
static thespis_status begin_entry(struct zip *zip, const char *name, thespis_error *error)
{
    struct th_text head = {0};
    size_t start = (size_t)th_stream_position(zip->stream) + 30 + strlen(name) + 4;
    size_t padding = (ALIGNMENT - start % ALIGNMENT) % ALIGNMENT;
    th_text_add(&head, "PK\3\4\0\0\x08\x08", 8, error);
    for (int i = 0; i < 18; i++) th_text_integer(&head, 0, 1, error);
    th_text_integer(&head, strlen(name), 2, error);
    th_text_integer(&head, padding + 4, 2, error);
    th_text_add(&head, name, strlen(name), error);
    th_text_add(&head, "FB", 2, error);
    th_text_integer(&head, padding, 2, error);
    for (size_t i = 0; i < padding; i++) th_text_add(&head, "Z", 1, error);
    thespis_status status = head.status;
    if (status == THESPIS_OK) status = th_stream_bytes(zip->stream, head.data, head.used, error);
    if (status == THESPIS_OK) status = th_stream_flush(zip->stream, error);
    th_stream_take_crc(zip->stream);
    th_text_free(&head);
    return status;
}

static void directory_entry(struct zip *zip, const char *name, uint64_t offset, uint64_t bytes, uint32_t crc)
{
    struct th_text *d = &zip->directory;
    th_text_add(d, "PK\1\2\0\0\0\0\x08\x08", 10, zip->error);
    th_text_integer(d, 0, 2, zip->error); /* method: stored */
    th_text_integer(d, 0, 4, zip->error); /* time and date */
    th_text_integer(d, crc, 4, zip->error);
    th_text_integer(d, bytes, 4, zip->error);
    th_text_integer(d, bytes, 4, zip->error);
    th_text_integer(d, strlen(name), 2, zip->error);
    for (int i = 0; i < 12; i++) th_text_integer(d, 0, 1, zip->error); /* extra, comment, disk, attributes */
    th_text_integer(d, offset, 4, zip->error);
    th_text_add(d, name, strlen(name), zip->error);
    zip->entries++;
}

/* An entry holding a recipe's values, or `bytes` of `data`. */
static thespis_status add_entry(struct zip *zip, const char *name, const struct th_recipe *recipe, const void *data, size_t bytes,
                                thespis_error *error)
{
    uint64_t offset = th_stream_position(zip->stream), size = recipe != NULL ? recipe->bytes : bytes;
    if (offset + size > 0xfffff000u) return th_fail(error, THESPIS_LIMIT, "codec.pth would pass 4 GiB at entry %s", name);
    TH_TRY(begin_entry(zip, name, error));
    if (recipe != NULL)
        TH_TRY(th_stream_recipe(zip->stream, recipe, error));
    else
        TH_TRY(th_stream_bytes(zip->stream, data, bytes, error));
    TH_TRY(th_stream_flush(zip->stream, error));
    uint32_t crc = th_stream_take_crc(zip->stream);
    uint8_t descriptor[16] = "PK\7\x08";
    for (int i = 0; i < 4; i++) {
        descriptor[4 + i] = (uint8_t)(crc >> 8 * i);
        descriptor[8 + i] = descriptor[12 + i] = (uint8_t)(size >> 8 * i);
    }
    TH_TRY(th_stream_bytes(zip->stream, descriptor, sizeof descriptor, error));
    directory_entry(zip, name, offset, size, crc);
    return zip->directory.status;
}

/* Central directory, zip64 end record with its locator (written always, as torch does), end record. */
static thespis_status end_zip(struct zip *zip, thespis_error *error)
{
    struct th_text *d = &zip->directory;
    uint64_t start = th_stream_position(zip->stream), bytes = d->used, end = start + bytes;
    th_text_add(d, "PK\6\6", 4, error);
    th_text_integer(d, 44, 8, error);
    th_text_integer(d, 0x031e, 2, error);
    th_text_integer(d, 45, 2, error);
    th_text_integer(d, 0, 8, error); /* disks */
    th_text_integer(d, zip->entries, 8, error);
    th_text_integer(d, zip->entries, 8, error);
    th_text_integer(d, bytes, 8, error);
    th_text_integer(d, start, 8, error);
    th_text_add(d, "PK\6\7\0\0\0\0", 8, error);
    th_text_integer(d, end, 8, error);
    th_text_integer(d, 1, 4, error);
    th_text_add(d, "PK\5\6\0\0\0\0", 8, error);
    th_text_integer(d, zip->entries, 2, error);
    th_text_integer(d, zip->entries, 2, error);
    th_text_integer(d, bytes, 4, error);
    th_text_integer(d, start, 4, error);
    th_text_integer(d, 0, 2, error);
    TH_TRY(d->status);
    TH_TRY(th_stream_bytes(zip->stream, d->data, d->used, error));
    return th_stream_flush(zip->stream, error);
}

static thespis_status write_entries(struct zip *zip, const struct th_job *job, const struct th_recipes *list, thespis_error *error)
{
    struct th_text pickle = {0};
    char name[64], id[48];
    thespis_status status = write_pickle(list, job->codec->extra_keys != 0, &pickle, error);
    if (status == THESPIS_OK) status = add_entry(zip, TOP "data.pkl", NULL, pickle.data, pickle.used, error);
    th_text_free(&pickle);
    TH_TRY(status);
    TH_TRY(add_entry(zip, TOP ".format_version", NULL, "1", 1, error));
    TH_TRY(add_entry(zip, TOP ".storage_alignment", NULL, "64", 2, error));
    TH_TRY(add_entry(zip, TOP "byteorder", NULL, "little", 6, error));
    for (size_t i = 0; i < list->count; i++) {
        snprintf(name, sizeof name, TOP "data/%zu", i);
        TH_TRY(add_entry(zip, name, &list->items[i], NULL, 0, error));
    }
    TH_TRY(add_entry(zip, TOP "version", NULL, "3\n", 2, error));
    snprintf(id, sizeof id, "%020llu%020llu", (unsigned long long)list->count, (unsigned long long)job->seed);
    TH_TRY(add_entry(zip, TOP ".data/serialization_id", NULL, id, strlen(id), error));
    return end_zip(zip, error);
}

static json_t *sizes_json(const struct th_codec_sizes *s)
{
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:i}", "encoder_dim", s->encoder_dim, "decoder_dim",
                     s->decoder_dim, "input_dim", s->latent, "n_codebooks", s->books, "codebook_size", s->entries,
                     "semantic_codebook_size", s->semantic_entries, "codebook_dim", s->code_width, "encoder_layers",
                     s->encoder_layers, "quantizer_layers", s->quantizer_layers, "intermediate_size", s->inner, "window_size",
                     s->window);
}

thespis_status th_pth_write(struct th_job *job, const struct th_recipes *list, thespis_error *error)
{
    struct th_output output = {.fd = -1};
    struct zip zip = {.error = error};
    char *path = NULL;
    thespis_status status = th_path_join(job->folder, "codec.pth", &path, error);
    if (status == THESPIS_OK && !job->dry_run) status = th_output_open(path, &output, error);
    if (status == THESPIS_OK) status = th_stream_open(job->pool, job->seed, job->dry_run ? NULL : &output, &zip.stream, error);
    if (status == THESPIS_OK) status = write_entries(&zip, job, list, error);
    if (status == THESPIS_OK && !job->dry_run) status = th_output_commit(&output, error);
    if (status != THESPIS_OK) th_output_discard(&output);
    if (status == THESPIS_OK) job->bytes += th_stream_position(zip.stream);
    th_stream_close(zip.stream);
    th_text_free(&zip.directory);
    th_free(path);
    TH_TRY(status);
    return th_write_json(job, "codec_sizes.json", sizes_json(&job->codec->sizes), error);
}
