/* products.c - how work is cut among threads: by rows of the weights or by columns, into pieces whose size depends on the amount of
 * work alone. A cut never changes a sum. */
#include "backend/cpu/lm.h"

#define PIECE_WORK 131072 /* multiply-adds: some ten microseconds, against about two for handing a piece over */
#define TILE_ROWS 16

struct product_list {
    const struct th_lm_kernels *kernels;
    const struct th_product *products;
    int count;
};

static int tiles_of(const struct th_product *product)
{
    return (product->rows + TILE_ROWS - 1) / TILE_ROWS;
}

/* Tiles begin..end-1 of all products laid end to end. */
static void product_task(void *context, int begin, int end)
{
    const struct product_list *list = context;
    int first = 0;
    for (int i = 0; i < list->count && first < end; i++) {
        const struct th_product *product = &list->products[i];
        int tiles = tiles_of(product), from = begin > first ? begin - first : 0, to = end - first < tiles ? end - first : tiles;
        if (from < to) {
            int last = to * TILE_ROWS < product->rows ? to * TILE_ROWS : product->rows;
            list->kernels->product(product, from * TILE_ROWS, last);
        }
        first += tiles;
    }
}

void th_lm_products(struct th_cpu *cpu, const struct th_product *products, int count)
{
    struct product_list list = {cpu->lm_kernels, products, count};
    int tiles = 0;
    double work = 0;
    for (int i = 0; i < count; i++) {
        tiles += tiles_of(&products[i]);
        work += (double)products[i].rows * products[i].inner * products[i].columns;
    }
    double pieces = work / PIECE_WORK;
    int grain = pieces <= 1 ? tiles : (int)(tiles / pieces);
    th_pool_run(cpu->pool, tiles, grain < 1 ? 1 : grain, product_task, &list);
}

void th_lm_each(struct th_cpu *cpu, int count, int cost, th_pool_task task, void *context)
{
    int grain = cost >= PIECE_WORK / 4 ? 1 : PIECE_WORK / 4 / (cost < 1 ? 1 : cost);
    th_pool_run(cpu->pool, count, grain, task, context);
}

struct th_product th_lm_product(const struct th_cpu *cpu, const struct th_matrix *w, const float *x, int columns, float *y)
{
    return (struct th_product){.bf16 = w->data,
                               .rows = w->rows,
                               .inner = w->cols,
                               .columns = columns,
                               .x = x,
                               .x_stride = w->cols,
                               .y = y,
                               .y_stride = w->rows,
                               .round = th_lm_bf16(cpu)};
}

/* Arguments of the loops over columns below. */
struct row_work {
    const struct th_cpu *cpu;
    const float *x, *other; /* [columns][n]; a norm's weight is [n] */
    float eps;
    int n, y_stride;
    float *y;
};

static void norm_task(void *context, int begin, int end)
{
    const struct row_work *rows = context;
    for (int c = begin; c < end; c++)
        rows->cpu->lm_kernels->norm(rows->x + (size_t)c * (size_t)rows->n, rows->other, 1.0f, rows->eps, rows->n,
                                    th_lm_bf16(rows->cpu), rows->y + (size_t)c * (size_t)rows->y_stride);
}

void th_lm_norm_rows(struct th_cpu *cpu, const float *x, const float *w, double eps, int columns, float *y, int y_stride)
{
    int hidden = cpu->model->config.backbone.hidden;
    struct row_work rows = {.cpu = cpu, .x = x, .other = w, .eps = (float)eps, .n = hidden, .y_stride = y_stride, .y = y};
    th_lm_each(cpu, columns, hidden, norm_task, &rows);
}

static void add_task(void *context, int begin, int end)
{
    const struct row_work *rows = context;
    size_t first = (size_t)begin * (size_t)rows->n;
    rows->cpu->lm_kernels->add(rows->x + first, rows->other + first, (end - begin) * rows->n, th_lm_bf16(rows->cpu),
                               rows->y + first);
}

void th_lm_add_rows(struct th_cpu *cpu, const float *x, const float *add, int columns, float *y)
{
    int hidden = cpu->model->config.backbone.hidden;
    struct row_work rows = {.cpu = cpu, .x = x, .other = add, .n = hidden, .y = y};
    th_lm_each(cpu, columns, hidden, add_task, &rows);
}

static void silu_task(void *context, int begin, int end)
{
    const struct row_work *rows = context;
    size_t first = (size_t)begin * (size_t)rows->n;
    rows->cpu->lm_kernels->silu_mul(rows->y + first, rows->other + first, (end - begin) * rows->n, th_lm_bf16(rows->cpu),
                                    rows->y + first);
}

void th_lm_silu_rows(struct th_cpu *cpu, float *gate, const float *up, int columns, int n)
{
    struct row_work rows = {.cpu = cpu, .other = up, .n = n, .y = gate};
    th_lm_each(cpu, columns, n * 8, silu_task, &rows);
}

void th_lm_probe(struct th_cpu *cpu, const struct th_lm_batch *batch, const char *name, int layer, int cols, const float *values)
{
    if (cpu->probe == NULL) return;
    for (int i = 0; i < batch->span_count; i++) {
        const struct th_lm_span *span = &batch->spans[i];
        cpu->probe(cpu->probe_context, span->number, name, layer, span->position, span->count, cols,
                   values + (size_t)span->column * (size_t)cols);
    }
}
