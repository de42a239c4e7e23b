/* load.c - see load.h. */
#include "backend/cuda/load.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/cuda/fill.h"
#include "base/memory.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define MOST_JOBS 4096
#define DIRECT_BYTES ((size_t)256 << 20) /* without staging: what may wait for the device */
#define MOST_PIECES (MOST_JOBS + TH_LOAD_BUFFER_BYTES / PIECE_BYTES)

thespis_status th_load_open(struct th_load *load, int threads, thespis_error *error)
{
    TH_TRY(th_pool_open(threads, &load->pool, error));
    TH_TRY(TH_ALLOC(&load->jobs, MOST_JOBS, "loading", error));
    TH_TRY(TH_ALLOC(&load->pieces, MOST_PIECES, "loading", error));
    for (int i = 0; i < TH_LOAD_BUFFERS; i++) {
        TH_CUDA(cudaEventCreateWithFlags(&load->copied[i], cudaEventDisableTiming), "an event", error);
        if (load->direct) continue;
        TH_CUDA(cudaMallocHost((void **)&load->host[i], TH_LOAD_BUFFER_BYTES), "a pinned buffer", error);
        TH_CUDA(cudaMalloc((void **)&load->device[i], TH_LOAD_BUFFER_BYTES), "a staging buffer", error);
    }
    return THESPIS_OK;
}

void th_load_close(struct th_load *load)
{
    cudaStreamSynchronize(load->launch.stream); /* a copy may be on its way after a failure */
    for (int i = 0; i < TH_LOAD_BUFFERS; i++) {
        if (load->copied[i] != NULL) cudaEventDestroy(load->copied[i]);
        cudaFreeHost(load->host[i]);
        cudaFree(load->device[i]);
    }
    th_free(load->jobs);
    th_free(load->pieces);
    if (load->pool != NULL) th_pool_close(load->pool);
    memset(load, 0, sizeof *load);
}

static void copy_pieces(void *context, int begin, int end)
{
    const struct th_load *load = context;
    for (int i = begin; i < end; i++) {
        const struct th_load_piece *piece = &load->pieces[i];
        memcpy(load->host[load->buffer] + piece->at, piece->from, piece->bytes);
    }
}

/* The whole pages of a source that has been read. They are read again from the file if anyone asks. */
static void drop_pages(const unsigned char *from, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)from + page - 1) / page * page, end = ((uintptr_t)from + bytes) / page * page;
    if (end > first) (void)madvise((void *)first, end - first, MADV_DONTNEED); /* only memory would be lost */
}

static void drop_sources(const struct th_load *load)
{
    for (size_t i = 0; i < load->piece_count; i++)
        if (load->pieces[i].mapped) drop_pages(load->pieces[i].from, load->pieces[i].bytes);
}

/* Makes `bytes` of a tensor from byte source_at on. */
static thespis_status fill(const struct th_load *load, const struct th_hole *hole, size_t source_at, size_t bytes, void *to,
                           thespis_error *error)
{
    cudaError_t code = hole->rule == TH_HOLE_E4M3 ? th_cuda_fill_e4m3(&load->launch, to, (int)(source_at / (size_t)hole->cols),
                                                                      (int)(bytes / (size_t)hole->cols), (int)hole->rows,
                                                                      (int)hole->cols, hole->key, hole->b, hole->scale_bf16)
                                                  : th_cuda_fill_normal(&load->launch, to, source_at / 2, bytes / 2, hole->key,
                                                                        hole->a, hole->b, hole->loud_row, hole->cols);
    return th_cuda_status(code, "making weights", error);
}

static thespis_status send(struct th_load *load, thespis_error *error)
{
    const unsigned char *host = load->host[load->buffer];
    unsigned char *device = load->device[load->buffer];
    for (size_t i = 0; i < load->job_count; i++) {
        const struct th_load_job *job = &load->jobs[i];
        void *to = job->packed ? device + job->at : job->to;
        if (job->hole)
            TH_TRY(fill(load, &job->source, job->source_at, job->bytes, to, error));
        else
            TH_CUDA(cudaMemcpyAsync(to, host + job->at, job->bytes, cudaMemcpyHostToDevice, load->launch.stream), "sending weights",
                    error);
        if (job->packed)
            TH_CUDA(th_cuda_pack(&load->launch, to, job->to, job->row_bytes, job->first_row, job->rows, job->pad_to, job->kind),
                    "packing weights", error);
    }
    TH_CUDA(cudaEventRecord(load->copied[load->buffer], load->launch.stream), "sending weights", error);
    return THESPIS_OK;
}

static void tell(struct th_load *load, uint64_t bytes)
{
    load->done += bytes;
    if (load->progress != NULL) load->progress(load->progress_context, "load", load->done, load->total);
}

/* Sends the buffer and takes up the next, once the device has done with that one. */
static thespis_status flush(struct th_load *load, thespis_error *error)
{
    if (load->job_count == 0) return THESPIS_OK;
    if (load->piece_count > 0) th_pool_run(load->pool, (int)load->piece_count, 1, copy_pieces, load);
    TH_TRY(send(load, error));
    drop_sources(load);
    tell(load, load->fill);
    load->buffer = (load->buffer + 1) % TH_LOAD_BUFFERS;
    load->fill = load->job_count = load->piece_count = 0;
    TH_CUDA(cudaEventSynchronize(load->copied[load->buffer]), "sending weights", error);
    return THESPIS_OK;
}

/* Waits for the device; without staging the sources can go now. */
static thespis_status settle(struct th_load *load, thespis_error *error)
{
    TH_CUDA(cudaStreamSynchronize(load->launch.stream), "sending weights", error);
    drop_sources(load);
    load->waiting = load->piece_count = 0;
    return THESPIS_OK;
}

/* Room for `bytes` in the buffer, and the pieces that will fill it. *at is aligned for the packing kernel. */
static void stage(struct th_load *load, const unsigned char *from, size_t bytes, int mapped, size_t at)
{
    for (size_t done = 0; done < bytes; done += PIECE_BYTES)
        load->pieces[load->piece_count++] =
            (struct th_load_piece){from + done, at + done, bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES, mapped};
    load->fill = at + bytes;
}

static size_t aligned_fill(const struct th_load *load)
{
    return (load->fill + 15) / 16 * 16;
}

static int is_full(const struct th_load *load, size_t least)
{
    return load->job_count + 1 >= MOST_JOBS || load->piece_count + TH_LOAD_BUFFER_BYTES / PIECE_BYTES >= MOST_PIECES ||
           aligned_fill(load) + least > TH_LOAD_BUFFER_BYTES;
}

/* Without staging: the kernel that reads the source is on its way. */
static thespis_status went_direct(struct th_load *load, const void *from, size_t bytes, int mapped, thespis_error *error)
{
    load->pieces[load->piece_count++] = (struct th_load_piece){from, 0, bytes, mapped};
    load->waiting += bytes;
    tell(load, bytes);
    return load->waiting < DIRECT_BYTES && load->piece_count < MOST_PIECES ? THESPIS_OK : settle(load, error);
}

thespis_status th_load_plain(struct th_load *load, const void *from, size_t bytes, int mapped, void *to, thespis_error *error)
{
    const unsigned char *source = from;
    unsigned char *target = to;
    struct th_hole hole;
    if (load->holes && mapped && bytes >= TH_HOLE_LEAST && th_hole_read(from, &hole)) {
        tell(load, bytes);
        return fill(load, &hole, 0, bytes, to, error);
    }
    if (load->direct) {
        TH_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, load->launch.stream), "sending weights", error);
        return went_direct(load, from, bytes, mapped, error);
    }
    while (bytes > 0) {
        if (is_full(load, 16)) TH_TRY(flush(load, error));
        struct th_load_job *last = load->job_count > 0 ? &load->jobs[load->job_count - 1] : NULL;
        int joins = last != NULL && !last->packed && !last->hole && (unsigned char *)last->to + last->bytes == target &&
                    last->at + last->bytes == load->fill;
        size_t at = joins ? load->fill : aligned_fill(load), room = TH_LOAD_BUFFER_BYTES - at;
        size_t now = bytes < room ? bytes : room;
        stage(load, source, now, mapped, at);
        if (joins)
            last->bytes += now; /* small arrays that follow each other on both sides travel as one */
        else
            load->jobs[load->job_count++] = (struct th_load_job){.at = at, .bytes = now, .to = target};
        source += now, target += now, bytes -= now;
    }
    return THESPIS_OK;
}

thespis_status th_load_rows(struct th_load *load, const void *tensor, const void *from, int rows, size_t row_bytes, void *tiles,
                            int first_row, int pad_to, enum th_cuda_rows kind, thespis_error *error)
{
    const unsigned char *source = from;
    struct th_hole hole = {0};
    const int made = load->holes && th_hole_read(tensor, &hole);
    if (load->direct && made) return th_fail(error, THESPIS_UNSUPPORTED, "recipes of weights need a device with its own memory");
    if (load->direct) {
        TH_CUDA(th_cuda_pack(&load->launch, from, tiles, row_bytes, first_row, rows, pad_to, kind), "packing weights", error);
        return went_direct(load, from, (size_t)rows * row_bytes, 1, error);
    }
    if (row_bytes > TH_LOAD_BUFFER_BYTES / 16)
        return th_fail(error, THESPIS_UNSUPPORTED, "a matrix has rows of %zu bytes, the CUDA backend loads up to %zu", row_bytes,
                       TH_LOAD_BUFFER_BYTES / 16);
    while (rows > 0) {
        if (is_full(load, 16 * row_bytes)) TH_TRY(flush(load, error));
        size_t at = aligned_fill(load), fit = (TH_LOAD_BUFFER_BYTES - at) / row_bytes;
        int now = fit < (size_t)rows ? (int)(fit / 16 * 16) : rows; /* whole tiles, unless it is all that is left */
        if (made)
            load->fill = at + (size_t)now * row_bytes;
        else
            stage(load, source, (size_t)now * row_bytes, 1, at);
        load->jobs[load->job_count++] = (struct th_load_job){.at = at,
                                                             .bytes = (size_t)now * row_bytes,
                                                             .to = tiles,
                                                             .packed = 1,
                                                             .hole = made,
                                                             .source = hole,
                                                             .source_at = (size_t)(source - (const unsigned char *)tensor),
                                                             .first_row = first_row,
                                                             .rows = now,
                                                             .pad_to = now == rows ? pad_to : 0,
                                                             .row_bytes = row_bytes,
                                                             .kind = kind};
        source += (size_t)now * row_bytes, first_row += now, rows -= now;
    }
    return THESPIS_OK;
}

thespis_status th_load_finish(struct th_load *load, thespis_error *error)
{
    TH_TRY(flush(load, error));
    return settle(load, error);
}
