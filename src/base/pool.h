/* pool.h - a thread pool for data-parallel loops. Work is cut by index, never by thread, and every index writes its own output: the
 * number of threads changes no byte. */
#ifndef THESPIS_BASE_POOL_H
#define THESPIS_BASE_POOL_H

#include "base/error.h"

struct th_pool;

/* Work on items begin..end-1. */
typedef void (*th_pool_task)(void *context, int begin, int end);

/* threads >= 1 counts the caller: 1 starts none. Threads run with the default floating-point environment. */
thespis_status th_pool_open(int threads, struct th_pool **pool, thespis_error *error);
void th_pool_close(struct th_pool *pool);
int th_pool_threads(const struct th_pool *pool);

/* Runs task over 0..count-1 in pieces of `grain` items and returns when all is done. The calling thread works too. May be called
 * from several threads at a time; not from inside a task. Needs no memory and cannot fail. */
void th_pool_run(struct th_pool *pool, int count, int grain, th_pool_task task, void *context);

/* The number of processors this process may use. */
int th_processor_count(void);

#endif
