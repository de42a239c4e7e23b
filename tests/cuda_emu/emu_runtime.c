/* emu_runtime.c - memory, streams, events and graphs of the emulated device. Memory is the processor's own, filled with NaN bytes
 * when it is handed out, so that what nobody wrote shows; AddressSanitizer then finds what kernels touch beside it. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_emu/emu.h"

#define DEFAULT_MEMORY ((size_t)64 << 30)

/* One piece of work of a graph. */
struct node {
    struct node *next;
    enum { KERNEL, COPY, FILL } kind;
    struct th_emu_kernel kernel;
    void *to;
    const void *from;
    size_t to_pitch, from_pitch, width, height; /* COPY: height rows of width bytes; FILL: width bytes */
    int value;
    _Alignas(16) unsigned char arguments[]; /* of a kernel */
};

struct th_emu_graph {
    struct node *first, *last;
    int users;
};
struct th_emu_stream {
    struct th_emu_stream *next;
    struct th_emu_graph *capture; /* NULL: work runs at once */
};
struct th_emu_event {
    struct th_emu_event *next;
    double seconds;
    struct th_emu_graph *capture; /* the capture it was recorded in, while that lasts */
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct th_emu_stream default_stream, *streams;
static struct th_emu_event *events;
static size_t used, memory_limit = DEFAULT_MEMORY;
static int integrated;
static long fail_from;
static cudaError_t fail_code;
static __thread cudaError_t last_error;
static cudaError_t lost; /* after a kernel failed every call fails, as on a device */

/* ---- errors -------------------------------------------------------------------------------------------------------------------
 */

static cudaError_t done(cudaError_t code)
{
    if (code != cudaSuccess) last_error = code;
    return code;
}

/* At the head of every call that may fail. */
static cudaError_t entered(void)
{
    pthread_mutex_lock(&mutex);
    cudaError_t code = lost;
    if (code == cudaSuccess && fail_from > 0 && --fail_from == 0) {
        fail_from = 1;
        code = fail_code;
    }
    pthread_mutex_unlock(&mutex);
    return done(code);
}
#define ENTER()                                                                                                                    \
    do {                                                                                                                           \
        cudaError_t entered_code = entered();                                                                                      \
        if (entered_code != cudaSuccess) return entered_code;                                                                      \
    } while (0)

void th_emu_fail_from(long n, cudaError_t code)
{
    pthread_mutex_lock(&mutex);
    fail_from = n;
    fail_code = code;
    lost = cudaSuccess;
    pthread_mutex_unlock(&mutex);
    last_error = cudaSuccess;
}

const char *cudaGetErrorName(cudaError_t code)
{
    switch (code) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    case cudaErrorLaunchFailure: return "cudaErrorLaunchFailure";
    case cudaErrorNotSupported: return "cudaErrorNotSupported";
    default: return "an error of the emulated device";
    }
}

const char *cudaGetErrorString(cudaError_t code)
{
    switch (code) {
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidValue: return "invalid argument";
    default: return cudaGetErrorName(code);
    }
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = last_error;
    last_error = cudaSuccess;
    return code;
}
cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* ---- the device ---------------------------------------------------------------------------------------------------------------
 */

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int *count)
{
    ENTER();
    *count = 1;
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
    ENTER();
    return done(device == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}
cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    ENTER();
    if (device != 0) return done(cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "emulated");
    properties->totalGlobalMem = memory_limit;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = 232448;
    properties->regsPerBlock = 65536;
    properties->maxThreadsPerBlock = 1024;
    properties->major = 9;
    properties->multiProcessorCount = 4;
    properties->integrated = integrated;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    ENTER();
    if (device != 0) return done(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock: *value = 1024; break;
    case cudaDevAttrMultiProcessorCount: *value = 4; break;
    case cudaDevAttrIntegrated: *value = integrated; break;
    case cudaDevAttrPageableMemoryAccess: *value = 1; break;
    case cudaDevAttrComputeCapabilityMajor: *value = 9; break;
    case cudaDevAttrComputeCapabilityMinor: *value = 0; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = 233472; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = 232448; break;
    default: return done(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    ENTER();
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *left, size_t *total)
{
    ENTER();
    *left = used < memory_limit ? memory_limit - used : 0;
    *total = memory_limit;
    return cudaSuccess;
}
size_t th_emu_used(void)
{
    return used;
}
void th_emu_set_memory(size_t bytes)
{
    memory_limit = bytes != 0 ? bytes : DEFAULT_MEMORY;
}
void th_emu_set_integrated(int value)
{
    integrated = value;
}

/* ---- memory -------------------------------------------------------------------------------------------------------------------
 */

#define HEAD 256 /* before each block: its size; keeps blocks aligned as the device's are */

static cudaError_t take(void **pointer, size_t bytes, int counted)
{
    *pointer = NULL;
    void *block;
    pthread_mutex_lock(&mutex);
    int fits = !counted || (used < memory_limit && bytes <= memory_limit - used);
    if (fits && counted) used += bytes;
    pthread_mutex_unlock(&mutex);
    if (!fits) return done(cudaErrorMemoryAllocation);
    if (posix_memalign(&block, HEAD, bytes + HEAD) != 0) return done(cudaErrorMemoryAllocation);
    *(size_t *)block = counted ? bytes : 0;
    *pointer = (unsigned char *)block + HEAD;
    memset(*pointer, 0xFF, bytes);
    return cudaSuccess;
}
static cudaError_t give_back(void *pointer)
{
    if (pointer == NULL) return cudaSuccess;
    unsigned char *block = (unsigned char *)pointer - HEAD;
    pthread_mutex_lock(&mutex);
    used -= *(size_t *)(void *)block;
    pthread_mutex_unlock(&mutex);
    free(block);
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    *pointer = NULL;
    ENTER();
    return take(pointer, bytes, 1);
}
cudaError_t cudaFree(void *pointer)
{
    return give_back(pointer); /* also after a failure: nothing may leak */
}
cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    *pointer = NULL;
    ENTER();
    return take(pointer, bytes, 0);
}
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags)
{
    (void)flags;
    return cudaMallocHost(pointer, bytes);
}
cudaError_t cudaFreeHost(void *pointer)
{
    return give_back(pointer);
}
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned flags)
{
    (void)pointer, (void)bytes, (void)flags;
    ENTER();
    return cudaSuccess;
}
cudaError_t cudaHostUnregister(void *pointer)
{
    (void)pointer;
    return cudaSuccess;
}

/* ---- work ---------------------------------------------------------------------------------------------------------------------
 */

static cudaError_t run(const struct node *node, const void *arguments)
{
    cudaError_t code = cudaSuccess;
    if (node->kind == KERNEL) {
        code = th_emu_run(&node->kernel, arguments);
    } else if (node->kind == FILL) {
        memset(node->to, node->value, node->width);
    } else {
        for (size_t i = 0; i < node->height; i++)
            memmove((unsigned char *)node->to + i * node->to_pitch, (const unsigned char *)node->from + i * node->from_pitch,
                    node->width);
    }
    if (code == cudaErrorLaunchFailure) lost = code;
    return code;
}

static cudaError_t submit(cudaStream_t stream, const struct node *work, const void *arguments, size_t bytes)
{
    ENTER();
    struct th_emu_graph *graph = stream != NULL ? stream->capture : default_stream.capture;
    if (graph == NULL) return done(run(work, arguments));
    struct node *node = malloc(sizeof *node + bytes + 16);
    if (node == NULL) return done(cudaErrorMemoryAllocation);
    *node = *work;
    node->next = NULL;
    if (bytes > 0) memcpy(node->arguments, arguments, bytes);
    if (graph->last != NULL)
        graph->last->next = node;
    else
        graph->first = node;
    graph->last = node;
    return cudaSuccess;
}

cudaError_t th_emu_submit(cudaStream_t stream, const struct th_emu_kernel *kernel, const void *arguments, size_t bytes)
{
    struct node node = {.kind = KERNEL, .kernel = *kernel};
    return submit(stream, &node, arguments, bytes);
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    struct node node = {.kind = COPY, .to = to, .from = from, .width = bytes, .height = 1};
    return submit(stream, &node, NULL, 0);
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(to, from, bytes, kind, NULL);
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height,
                              enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)kind;
    if (width > to_pitch || width > from_pitch) return done(cudaErrorInvalidValue);
    struct node node = {
        .kind = COPY, .to = to, .from = from, .to_pitch = to_pitch, .from_pitch = from_pitch, .width = width, .height = height};
    return submit(stream, &node, NULL, 0);
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    struct node node = {.kind = FILL, .to = to, .value = value, .width = bytes};
    return submit(stream, &node, NULL, 0);
}
cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    return cudaMemsetAsync(to, value, bytes, NULL);
}

/* ---- streams and events --------------------------------------------------------------------------------------------------------
 */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    *stream = NULL;
    ENTER();
    *stream = calloc(1, sizeof **stream);
    if (*stream == NULL) return done(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&mutex);
    (*stream)->next = streams;
    streams = *stream;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)priority;
    return cudaStreamCreateWithFlags(stream, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (stream == NULL) return cudaSuccess;
    pthread_mutex_lock(&mutex);
    struct th_emu_stream **link = &streams;
    while (*link != stream) link = &(*link)->next;
    *link = stream->next;
    pthread_mutex_unlock(&mutex);
    free(stream);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    ENTER();
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    return cudaStreamSynchronize(stream);
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    (void)flags;
    ENTER();
    if (stream != NULL && event->capture != NULL) stream->capture = event->capture;
    return cudaSuccess;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    *event = NULL;
    ENTER();
    *event = calloc(1, sizeof **event);
    if (*event == NULL) return done(cudaErrorMemoryAllocation);
    pthread_mutex_lock(&mutex);
    (*event)->next = events;
    events = *event;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, 0);
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event == NULL) return cudaSuccess;
    pthread_mutex_lock(&mutex);
    struct th_emu_event **link = &events;
    while (*link != event) link = &(*link)->next;
    *link = event->next;
    pthread_mutex_unlock(&mutex);
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    ENTER();
    event->seconds = now();
    event->capture = stream != NULL ? stream->capture : NULL;
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    (void)event;
    ENTER();
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    return cudaEventSynchronize(event);
}
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t from, cudaEvent_t to)
{
    ENTER();
    *milliseconds = (float)((to->seconds - from->seconds) * 1e3);
    return cudaSuccess;
}

/* ---- graphs --------------------------------------------------------------------------------------------------------------------
 */

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
    (void)mode;
    ENTER();
    if (stream == NULL || stream->capture != NULL) return done(cudaErrorInvalidValue);
    stream->capture = calloc(1, sizeof *stream->capture);
    if (stream->capture == NULL) return done(cudaErrorMemoryAllocation);
    stream->capture->users = 1;
    return cudaSuccess;
}

static void release(struct th_emu_graph *graph)
{
    if (graph == NULL || --graph->users > 0) return;
    while (graph->first != NULL) {
        struct node *next = graph->first->next;
        free(graph->first);
        graph->first = next;
    }
    free(graph);
}

/* Streams that joined by an event leave. */
static void forget(const struct th_emu_graph *capture)
{
    pthread_mutex_lock(&mutex);
    for (struct th_emu_stream *s = streams; s != NULL; s = s->next)
        if (s->capture == capture) s->capture = NULL;
    for (struct th_emu_event *e = events; e != NULL; e = e->next)
        if (e->capture == capture) e->capture = NULL;
    pthread_mutex_unlock(&mutex);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
    *graph = NULL;
    struct th_emu_graph *capture = stream != NULL ? stream->capture : NULL;
    if (capture == NULL) return done(cudaErrorInvalidValue);
    forget(capture);
    cudaError_t code = entered();
    if (code != cudaSuccess)
        release(capture);
    else
        *graph = capture;
    return code;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    *exec = NULL;
    ENTER();
    graph->users++;
    *exec = graph;
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)stream;
    ENTER();
    for (const struct node *node = exec->first; node != NULL; node = node->next) {
        cudaError_t code = run(node, node->arguments);
        if (code != cudaSuccess) return done(code);
    }
    return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream)
{
    (void)exec, (void)stream;
    ENTER();
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    release(exec);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    release(graph);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    (void)function, (void)attribute, (void)value;
    ENTER();
    return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    (void)function;
    ENTER();
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->maxDynamicSharedSizeBytes = 232448;
    return cudaSuccess;
}
