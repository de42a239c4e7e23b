/* graphs.c - a step as one CUDA graph: its kernels and the upload before them are captured once a shape, and
 * then start with one call. What changes from step to step lies in the pass, in device memory. */
#include "backend/cuda/lm.h"

static const struct th_cuda_graph *find(const struct th_cuda_forward *f, const struct th_cuda_step_shape *shape)
{
    for (int i = 0; i < f->graph_count; i++) {
        const struct th_cuda_step_shape *have = &f->graphs[i].shape;
        if (have->columns == shape->columns && have->splits == shape->splits && have->ahead == shape->ahead) return &f->graphs[i];
    }
    return NULL;
}

/* Ends a capture, also one in which something failed. */
static thespis_status capture(struct th_cuda *cuda, const struct th_cuda_step_shape *shape, cudaGraph_t *graph,
                              thespis_error *error)
{
    thespis_status status = th_cuda_step_kernels(cuda, shape, error);
    cudaError_t code = cudaStreamEndCapture(cuda->stream, graph);
    return status != THESPIS_OK ? status : th_cuda_status(code, "a step's graph", error);
}

/* *made is 0 where the device makes no graphs. */
static thespis_status make(struct th_cuda *cuda, const struct th_cuda_step_shape *shape, int *made, thespis_error *error)
{
    struct th_cuda_forward *f = cuda->forward;
    cudaGraph_t graph = NULL;
    *made = 0;
    cudaError_t code = cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal);
    if (code == cudaErrorNotSupported) {
        cudaGetLastError();
        return THESPIS_OK;
    }
    TH_CUDA(code, "a step's graph", error);
    thespis_status status = capture(cuda, shape, &graph, error);
    struct th_cuda_graph *to = &f->graphs[f->graph_count];
    if (status == THESPIS_OK) status = th_cuda_status(cudaGraphInstantiate(&to->exec, graph, 0), "a step's graph", error);
    if (graph != NULL) cudaGraphDestroy(graph);
    TH_TRY(status);
    to->shape = *shape;
    f->graph_count++;
    *made = 1;
    return THESPIS_OK;
}

thespis_status th_cuda_run_step(struct th_cuda *cuda, const struct th_cuda_step_shape *shape, thespis_error *error)
{
    struct th_cuda_forward *f = cuda->forward;
    if (cuda->probe != NULL) return th_cuda_step_kernels(cuda, shape, error);
    const struct th_cuda_graph *graph = find(f, shape);
    if (graph == NULL && f->graph_count < TH_CUDA_GRAPHS) {
        int made;
        TH_TRY(make(cuda, shape, &made, error));
        graph = made ? find(f, shape) : NULL;
    }
    if (graph == NULL) return th_cuda_step_kernels(cuda, shape, error);
    TH_CUDA(cudaGraphLaunch(graph->exec, cuda->stream), "a step", error);
    return THESPIS_OK;
}

/* The graphs that a first request needs, so that it does not wait for them. */
thespis_status th_cuda_graphs_prepare(struct th_cuda *cuda, thespis_error *error)
{
    const int most = cuda->forward->splits;
    if (cuda->probe != NULL) return THESPIS_OK;
    for (int splits = 4;; splits *= 4) {
        struct th_cuda_step_shape shape = {.columns = 1, .splits = splits < most ? splits : most, .ahead = 1};
        int made;
        TH_TRY(make(cuda, &shape, &made, error));
        if (!made || splits >= most || splits >= 16) return THESPIS_OK;
    }
}

void th_cuda_graphs_release(struct th_cuda_forward *f)
{
    for (int i = 0; i < f->graph_count; i++) cudaGraphExecDestroy(f->graphs[i].exec);
    f->graph_count = 0;
}
