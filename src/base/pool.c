/* pool.c - see pool.h.
 *
 * Jobs form a list; the caller of a job and any idle worker take pieces of it by an atomic counter. A worker that finds no job
 * spins for a moment (the next loop of the network is microseconds away) and then sleeps. A job lives on its caller's stack: the
 * caller leaves only when every piece is done and no worker holds a reference. */
#include "base/pool.h"

#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/thread.h"

#define SPIN_ROUNDS 2000

struct job {
    th_pool_task task;
    void *context;
    int count, grain;
    atomic_llong next; /* first item not yet taken; wide, since every thread adds a grain past the end */
    atomic_int left;   /* items not yet done */
    int holders;       /* workers that look at this job; under the mutex */
    struct job *after;
};

struct th_pool {
    int threads; /* with the caller */
    int started;
    pthread_t *workers; /* [threads - 1] */
    pthread_mutex_t mutex;
    pthread_cond_t wake; /* a job was added, or closing */
    pthread_cond_t done; /* a job's last piece was finished, or a holder left */
    struct job *jobs;    /* those that may still have pieces to take */
    atomic_uint epoch;   /* grows with every job: what spinning workers look at */
    int closing;
};

/* Takes and runs pieces until none is left. */
static void work(struct job *job)
{
    for (;;) {
        long long taken = atomic_fetch_add_explicit(&job->next, job->grain, memory_order_relaxed);
        if (taken >= job->count) return;
        int begin = (int)taken;
        int end = job->count - begin < job->grain ? job->count : begin + job->grain;
        job->task(job->context, begin, end);
        atomic_fetch_sub_explicit(&job->left, end - begin, memory_order_acq_rel);
    }
}

static struct job *find_job(struct th_pool *pool)
{
    for (struct job *job = pool->jobs; job != NULL; job = job->after)
        if (atomic_load_explicit(&job->next, memory_order_relaxed) < job->count) return job;
    return NULL;
}

static void spin_for_work(struct th_pool *pool, unsigned seen)
{
    for (int i = 0; i < SPIN_ROUNDS; i++) {
        if (atomic_load_explicit(&pool->epoch, memory_order_acquire) != seen) return;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
}

static void *worker_main(void *argument)
{
    struct th_pool *pool = argument;
    fesetenv(FE_DFL_ENV); /* a host program may have set flush-to-zero on the thread that made us */
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        struct job *job = find_job(pool);
        if (job != NULL) {
            job->holders++;
            pthread_mutex_unlock(&pool->mutex);
            work(job);
            pthread_mutex_lock(&pool->mutex);
            if (--job->holders == 0) pthread_cond_broadcast(&pool->done);
            continue;
        }
        if (pool->closing) break;
        unsigned seen = atomic_load(&pool->epoch);
        pthread_mutex_unlock(&pool->mutex);
        spin_for_work(pool, seen);
        pthread_mutex_lock(&pool->mutex);
        if (!pool->closing && find_job(pool) == NULL && atomic_load(&pool->epoch) == seen)
            pthread_cond_wait(&pool->wake, &pool->mutex);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

/* The same pieces as with many threads: a task may size its scratch by the grain. */
static void run_alone(int count, int grain, th_pool_task task, void *context)
{
    for (int begin = 0; begin < count;) {
        int end = count - begin < grain ? count : begin + grain;
        task(context, begin, end);
        begin = end;
    }
}

void th_pool_run(struct th_pool *pool, int count, int grain, th_pool_task task, void *context)
{
    if (count <= 0) return;
    if (grain < 1) grain = 1;
    if (pool->threads == 1 || count <= grain) {
        run_alone(count, grain, task, context);
        return;
    }
    struct job job = {.task = task, .context = context, .count = count, .grain = grain};
    atomic_init(&job.next, 0);
    atomic_init(&job.left, count);

    pthread_mutex_lock(&pool->mutex);
    job.after = pool->jobs;
    pool->jobs = &job;
    atomic_fetch_add_explicit(&pool->epoch, 1, memory_order_release);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);

    work(&job);

    for (int i = 0; i < SPIN_ROUNDS && atomic_load_explicit(&job.left, memory_order_acquire) > 0; i++) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    }
    pthread_mutex_lock(&pool->mutex);
    struct job **link = &pool->jobs;
    while (*link != &job) link = &(*link)->after;
    *link = job.after;
    while (job.holders > 0 || atomic_load_explicit(&job.left, memory_order_acquire) > 0)
        pthread_cond_wait(&pool->done, &pool->mutex);
    pthread_mutex_unlock(&pool->mutex);
}

thespis_status th_pool_open(int threads, struct th_pool **out, thespis_error *error)
{
    *out = NULL;
    if (threads < 1 || threads > 1024) return th_fail(error, THESPIS_INVALID, "threads is %d, must be 1 to 1024", threads);
    struct th_pool *pool;
    TH_TRY(TH_ALLOC(&pool, 1, "the thread pool", error));
    pool->threads = threads;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    pthread_cond_init(&pool->done, NULL);
    thespis_status status = TH_ALLOC(&pool->workers, (size_t)threads, "the thread pool", error);
    while (status == THESPIS_OK && pool->started < threads - 1) {
        int reason = th_thread_start(&pool->workers[pool->started], worker_main, pool);
        if (reason != 0)
            status = th_fail(error, THESPIS_MEMORY, "cannot start thread %d of %d (system error %d)", pool->started + 2, threads,
                             reason);
        else
            pool->started++;
    }
    if (status != THESPIS_OK) {
        th_pool_close(pool);
        return status;
    }
    *out = pool;
    return THESPIS_OK;
}

void th_pool_close(struct th_pool *pool)
{
    if (pool == NULL) return;
    pthread_mutex_lock(&pool->mutex);
    pool->closing = 1;
    atomic_fetch_add(&pool->epoch, 1);
    pthread_cond_broadcast(&pool->wake);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->started; i++) pthread_join(pool->workers[i], NULL);
    pthread_cond_destroy(&pool->done);
    pthread_cond_destroy(&pool->wake);
    pthread_mutex_destroy(&pool->mutex);
    th_free(pool->workers);
    th_free(pool);
}

int th_pool_threads(const struct th_pool *pool)
{
    return pool->threads;
}

int th_processor_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    /* Machines of more than 1,024 processors do not fit a cpu_set_t. */
    int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    return count < 1 ? 1 : count > 256 ? 256 : count;
}
