/* engine.c - opening, closing and describing an engine. */
#include "engine/engine.h"

#include <string.h>

#include "base/memory.h"
#include "base/thread.h"
#include "engine/codec_jobs.h"

#define STRINGIFY_(x) #x
#define STRINGIFY(x) STRINGIFY_(x)

const char *thespis_version(void)
{
    return STRINGIFY(THESPIS_VERSION_MAJOR) "." STRINGIFY(THESPIS_VERSION_MINOR) "." STRINGIFY(THESPIS_VERSION_PATCH);
}

void thespis_engine_options_init(thespis_engine_options *options)
{
    memset(options, 0, sizeof *options);
    options->size = sizeof *options;
    options->precision = THESPIS_PRECISION_AUTO;
    options->lanes = 1;
    options->prefill_rows = 64;
    options->voice_slots = 2;
    options->act_quant = 1;
}

static thespis_status start_thread(pthread_t *thread, void *(*body)(void *), thespis_engine *e, thespis_error *error)
{
    int reason = th_thread_start(thread, body, e);
    if (reason != 0) return th_fail(error, THESPIS_MEMORY, "cannot start a thread of the engine (system error %d)", reason);
    e->threads_started++;
    return THESPIS_OK;
}

static thespis_status open_engine(const thespis_engine_options *options, thespis_engine *e, thespis_error *error)
{
    TH_TRY(th_parts_open(options, TH_PARTS_NEED_CODEC, &e->parts, error));
    TH_TRY(th_code_cache_open(TH_CODE_CACHE_BYTES, &e->code_cache, error));
    e->lanes = options->lanes;
    e->prefill_rows = options->prefill_rows;
    e->slots.first_lane = options->lanes;
    e->slots.count = options->voice_slots;
    e->progress = options->progress;
    e->progress_context = options->progress_context;
    if (e->parts.model == NULL) return THESPIS_OK; /* the codec alone needs no threads of its own */
    TH_TRY(TH_ALLOC(&e->window, (size_t)TH_DECODE_MAX_FRAMES * THESPIS_FRAME_SAMPLES, "decoded samples", error));
    TH_TRY(start_thread(&e->driver, th_driver_main, e, error));
    return start_thread(&e->codec, th_codec_main, e, error);
}

thespis_status thespis_engine_open(const thespis_engine_options *options, thespis_engine **engine, thespis_error *error)
{
    *engine = NULL;
    if (options == NULL) return th_fail(error, THESPIS_INVALID, "options is NULL");
    thespis_engine *e;
    TH_TRY(TH_ALLOC(&e, 1, "an engine", error));
    pthread_mutex_init(&e->mutex, NULL);
    pthread_mutex_init(&e->decode_mutex, NULL);
    pthread_mutex_init(&e->encode_mutex, NULL);
    pthread_cond_init(&e->driver_wake, NULL);
    pthread_cond_init(&e->codec_wake, NULL);
    fenv_t callers;
    th_default_floats(&callers); /* tables and packed weights */
    thespis_status status = open_engine(options, e, error);
    fesetenv(&callers);
    if (status != THESPIS_OK) {
        thespis_engine_close(e);
        return status;
    }
    *engine = e;
    return THESPIS_OK;
}

void thespis_engine_close(thespis_engine *e)
{
    if (e == NULL) return;
    pthread_mutex_lock(&e->mutex);
    e->closing = 1;
    pthread_cond_broadcast(&e->driver_wake);
    pthread_cond_broadcast(&e->codec_wake);
    pthread_mutex_unlock(&e->mutex);
    if (e->threads_started > 0) pthread_join(e->driver, NULL);
    if (e->threads_started > 1) pthread_join(e->codec, NULL);
    th_code_cache_close(e->code_cache);
    th_parts_close(&e->parts);
    th_free(e->window);
    pthread_cond_destroy(&e->codec_wake);
    pthread_cond_destroy(&e->driver_wake);
    pthread_mutex_destroy(&e->encode_mutex);
    pthread_mutex_destroy(&e->decode_mutex);
    pthread_mutex_destroy(&e->mutex);
    th_free(e);
}

thespis_status thespis_engine_get_info(const thespis_engine *e, thespis_engine_info *info, thespis_error *error)
{
    if (info->size != sizeof *info)
        return th_fail(error, THESPIS_INVALID, "info.size is %zu, must be %zu", info->size, sizeof *info);
    const struct th_parts *p = &e->parts;
    struct th_backend_memory memory = {0};
    p->backend->ops->memory(p->backend, &memory);
    info->has_model = p->model != NULL;
    info->codebooks = p->codebooks;
    info->codebook_size = p->codebook_size;
    info->max_rows = p->max_rows;
    info->lanes = p->model != NULL ? e->lanes : 0;
    info->threads = p->threads;
    info->backend = p->backend->ops->name;
    info->isa = p->backend->ops->device(p->backend);
    info->lane_bytes = memory.lanes;
    info->weight_bytes = memory.weights + memory.codec + memory.work;
    info->mapped_bytes = (p->model != NULL ? p->model->mapped_bytes : 0) + p->codec->mapped_bytes;
    return THESPIS_OK;
}
