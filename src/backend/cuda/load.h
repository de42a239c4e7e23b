/* load.h - the way of weights from the mapped files to the device: gathered into pinned buffers by the thread pool, copied, packed
 * there, and the files' pages dropped behind. Two buffers take turns with the device, so that reading and copying overlap. On a
 * device that shares the host's memory kernels read the map itself. */
#ifndef THESPIS_BACKEND_CUDA_LOAD_H
#define THESPIS_BACKEND_CUDA_LOAD_H

#include "backend/cuda/pack.h"
#include "base/pool.h"
#include "checkpoint/holes.h"

#define TH_LOAD_BUFFERS 3
#define TH_LOAD_BUFFER_BYTES ((size_t)32 << 20)

/* One destination of bytes in a buffer. */
struct th_load_job {
    size_t at, bytes; /* in the buffer */
    int hole;         /* the bytes are made on the device: source is its recipe, source_at where in the tensor they begin */
    struct th_hole source;
    size_t source_at;
    void *to; /* rows as they are, or tiles */
    int packed, first_row, rows, pad_to;
    size_t row_bytes;
    enum th_cuda_rows kind;
};

/* Source bytes and where they go in the buffer; at most 1 MiB, so that threads share the work. */
struct th_load_piece {
    const unsigned char *from;
    size_t at, bytes;
    int mapped; /* pages of a file: dropped afterwards */
};

struct th_load {
    struct th_cuda_launch launch;
    int direct; /* no staging */
    int holes;  /* sources may be recipes */
    struct th_pool *pool;
    unsigned char *host[TH_LOAD_BUFFERS], *device[TH_LOAD_BUFFERS];
    cudaEvent_t copied[TH_LOAD_BUFFERS];
    int buffer;
    size_t fill;
    struct th_load_job *jobs;
    struct th_load_piece *pieces;
    size_t job_count, piece_count;
    size_t waiting;       /* without staging: source bytes whose pages are not dropped yet */
    uint64_t done, total; /* source bytes */
    thespis_progress progress;
    void *progress_context;
};

/* Makes buffers and threads. *load is empty before; release it also after a failure. */
thespis_status th_load_open(struct th_load *load, int threads, thespis_error *error);
void th_load_close(struct th_load *load);
/* `bytes` to the device as they are; mapped: they lie in a mapped file. Sources must live until th_load_finish. */
thespis_status th_load_plain(struct th_load *load, const void *from, size_t bytes, int mapped, void *to, thespis_error *error);
/* Rows of the tensor at `tensor` in a mapped file, from `from` on, to tiles: see th_cuda_pack. */
thespis_status th_load_rows(struct th_load *load, const void *tensor, const void *from, int rows, size_t row_bytes, void *tiles,
                            int first_row, int pad_to, enum th_cuda_rows kind, thespis_error *error);
/* Everything that was asked for is on the device when it returns. */
thespis_status th_load_finish(struct th_load *load, thespis_error *error);

#endif
