/* parts.c - see parts.h. */
#include "engine/parts.h"

#include <string.h>

#include "base/file.h"
#include "base/memory.h"
#include "base/pool.h"

#define DEFAULT_MAX_ROWS 4096
#define MOST_ROWS 16384

static thespis_status check_options(const thespis_engine_options *o, thespis_error *error)
{
    if (o->size != sizeof *o)
        return th_fail(error, THESPIS_INVALID, "options.size is %zu, must be %zu: call thespis_engine_options_init", o->size,
                       sizeof *o);
    if (o->checkpoint == NULL && o->codec == NULL)
        return th_fail(error, THESPIS_INVALID, "neither a checkpoint nor a codec is named: one of them is needed");
    if (o->threads < 0 || o->threads > 256) return th_fail(error, THESPIS_INVALID, "threads is %d, must be 0 to 256", o->threads);
    if (o->lanes < 1 || o->lanes > 64) return th_fail(error, THESPIS_INVALID, "lanes is %d, must be 1 to 64", o->lanes);
    if (o->max_rows != 0 && (o->max_rows < 2 || o->max_rows > MOST_ROWS))
        return th_fail(error, THESPIS_INVALID, "max_rows is %d, must be 2 to %d (or 0 for %d)", o->max_rows, MOST_ROWS,
                       DEFAULT_MAX_ROWS);
    if (o->prefill_rows < 1) return th_fail(error, THESPIS_INVALID, "prefill_rows is %d, must be at least 1", o->prefill_rows);
    if (o->voice_slots < 0 || o->voice_slots > 64)
        return th_fail(error, THESPIS_INVALID, "voice_slots is %d, must be 0 to 64", o->voice_slots);
    if (o->precision != THESPIS_PRECISION_F32 && o->precision != THESPIS_PRECISION_BF16 && o->precision != THESPIS_PRECISION_AUTO)
        return th_fail(error, THESPIS_INVALID, "precision is %d, must be f32 (0), bf16 (1) or auto (2)", (int)o->precision);
    if (o->backend != THESPIS_BACKEND_AUTO && o->backend != THESPIS_BACKEND_CPU && o->backend != THESPIS_BACKEND_CUDA)
        return th_fail(error, THESPIS_INVALID, "backend is %d, must be auto (0), cpu (1) or cuda (2)", (int)o->backend);
    return THESPIS_OK;
}

/* The codec's file: as named, or codec.safetensors, or codec.pth in the checkpoint's folder. *path stays NULL when there is none.
 */
static thespis_status find_codec(const thespis_engine_options *o, char **path, thespis_error *error)
{
    *path = NULL;
    if (o->codec != NULL) {
        *path = th_copy_string(o->codec, strlen(o->codec));
        return *path != NULL ? THESPIS_OK : th_fail_memory(error, "a path", strlen(o->codec));
    }
    static const char *const names[] = {"codec.safetensors", "codec.pth"};
    for (size_t i = 0; i < 2; i++) {
        TH_TRY(th_path_join(o->checkpoint, names[i], path, error));
        if (th_path_exists(*path)) return THESPIS_OK;
        th_free(*path);
        *path = NULL;
    }
    return THESPIS_OK;
}

static thespis_status open_codec(const thespis_engine_options *o, int flags, struct th_parts *p, thespis_error *error)
{
    char *path;
    TH_TRY(find_codec(o, &path, error));
    if (path == NULL) {
        if (flags & TH_PARTS_NEED_CODEC)
            return th_fail(error, THESPIS_IO, "no codec: '%s' holds neither codec.safetensors nor codec.pth", o->checkpoint);
        return THESPIS_OK;
    }
    thespis_status status = th_codec_open(path, TH_CODEC_BOTH, &p->codec, error);
    th_free(path);
    return status;
}

static thespis_status open_tokenizer(const char *folder, struct th_parts *p, thespis_error *error)
{
    char *path;
    TH_TRY(th_path_join(folder, "tokenizer.json", &path, error));
    thespis_status status = th_tokenizer_open(path, &p->tokenizer, error);
    th_free(path);
    return status;
}

static thespis_status open_model(const thespis_engine_options *o, struct th_parts *p, thespis_error *error)
{
    TH_TRY(th_model_open(o->checkpoint, &p->model, error));
    const struct th_config *c = &p->model->config;
    p->shape = (struct th_prompt_shape){c->tower.codebooks, c->tower.codebook_size, c->semantic_start};
    TH_TRY(open_tokenizer(o->checkpoint, p, error));
    TH_TRY(th_prompt_check_tokenizer(p->tokenizer, &p->shape, error));
    if (th_tokenizer_size(p->tokenizer) > c->backbone.vocab)
        return th_fail(error, THESPIS_FORMAT, "tokenizer.json has ids up to %d, but config.json's vocab_size is %d",
                       (int)th_tokenizer_size(p->tokenizer) - 1, c->backbone.vocab);
    p->max_rows = o->max_rows != 0 ? o->max_rows : DEFAULT_MAX_ROWS;
    if (p->max_rows > c->backbone.max_positions) {
        if (o->max_rows != 0)
            return th_fail(error, THESPIS_LIMIT, "max_rows is %d, the model has %d positions", o->max_rows,
                           c->backbone.max_positions);
        p->max_rows = c->backbone.max_positions;
    }
    return THESPIS_OK;
}

static thespis_status match(const struct th_parts *p, thespis_error *error)
{
    if (p->model == NULL || p->codec == NULL || p->codec->books == p->model->config.tower.codebooks) return THESPIS_OK;
    return th_fail(error, THESPIS_FORMAT, "the codec has %d codebooks, the model %d: they do not belong together", p->codec->books,
                   p->model->config.tower.codebooks);
}

static void count_codebooks(struct th_parts *p)
{
    p->codebooks = p->model != NULL ? p->model->config.tower.codebooks : p->codec->books;
    if (p->model != NULL) {
        p->codebook_size = p->model->config.tower.codebook_size;
        return;
    }
    for (int i = 0; i < p->codec->books; i++)
        if (p->codec->book_entries[i] > p->codebook_size) p->codebook_size = p->codec->book_entries[i];
}

#ifdef TH_HAVE_CUDA
static thespis_status open_backend(const thespis_engine_options *o, struct th_backend_options *options, struct th_parts *p,
                                   thespis_error *error)
{
    const int asked = options->precision != THESPIS_PRECISION_AUTO;
    if (o->backend != THESPIS_BACKEND_CPU) {
        struct th_backend_options cuda = *options;
        if (!asked) cuda.precision = THESPIS_PRECISION_BF16;
        p->precision = cuda.precision;
        if (o->backend == THESPIS_BACKEND_CUDA || th_cuda_backend_fits(p->model, &cuda, NULL) == THESPIS_OK)
            return th_cuda_backend_open(p->model, p->codec, &cuda, &p->backend, error);
    }
    if (!asked) options->precision = THESPIS_PRECISION_F32;
    p->precision = options->precision;
    return th_cpu_backend_open(p->model, p->codec, options, &p->backend, error);
}
#else
static thespis_status open_backend(const thespis_engine_options *o, struct th_backend_options *options, struct th_parts *p,
                                   thespis_error *error)
{
    if (o->backend == THESPIS_BACKEND_CUDA)
        return th_fail(error, THESPIS_UNSUPPORTED, "backend is cuda, but this build has only cpu");
    if (options->precision == THESPIS_PRECISION_AUTO) options->precision = THESPIS_PRECISION_F32;
    p->precision = options->precision;
    return th_cpu_backend_open(p->model, p->codec, options, &p->backend, error);
}
#endif

static thespis_status open_all(const thespis_engine_options *o, int flags, struct th_parts *p, thespis_error *error)
{
    TH_TRY(check_options(o, error));
    if (o->checkpoint != NULL) TH_TRY(open_model(o, p, error));
    TH_TRY(open_codec(o, flags, p, error));
    TH_TRY(match(p, error));
    count_codebooks(p);
    p->threads = o->threads != 0 ? o->threads : th_processor_count();
    struct th_backend_options backend = {.precision = o->precision,
                                         .isa = o->isa,
                                         .device = o->device,
                                         .threads = p->threads,
                                         .act_quant = o->act_quant,
                                         .progress = o->progress,
                                         .progress_context = o->progress_context};
    TH_TRY(open_backend(o, &backend, p, error));
    if (p->model != NULL) TH_TRY(p->backend->ops->lanes(p->backend, o->lanes + o->voice_slots, p->max_rows, error));
    return THESPIS_OK;
}

thespis_status th_parts_open(const thespis_engine_options *options, int flags, struct th_parts *parts, thespis_error *error)
{
    memset(parts, 0, sizeof *parts);
    thespis_status status = open_all(options, flags, parts, error);
    if (status != THESPIS_OK) th_parts_close(parts);
    return status;
}

void th_parts_close(struct th_parts *parts)
{
    if (parts->backend != NULL) parts->backend->ops->close(parts->backend);
    th_tokenizer_close(parts->tokenizer);
    th_codec_close(parts->codec);
    th_model_close(parts->model);
    memset(parts, 0, sizeof *parts);
}
