/* moe.c - mixture of experts (docs/model.md, "MoE" and "FP8 expert numerics"). Rows are grouped by expert so that each expert's
 * weights are read once a batch; each row's sum is taken in its own slot order. */
#include "backend/cpu/lm.h"

struct moe_work {
    struct th_cpu *cpu;
    const struct th_backbone_config *config;
    int top_k, quantise, inner_blocks, input_blocks;
};

static int blocks_of(int n)
{
    return (n + TH_EXPERT_BLOCK - 1) / TH_EXPERT_BLOCK;
}

/* Chooses each column's experts and quantises its input once for all of them. */
static void route_task(void *context, int begin, int end)
{
    const struct moe_work *moe = context;
    const struct th_lm_kernels *kernels = moe->cpu->lm_kernels;
    struct th_lm_work *work = &moe->cpu->lm->work;
    const int experts = moe->config->experts, hidden = moe->config->hidden;
    for (int c = begin; c < end; c++) {
        size_t router = (size_t)c * (size_t)experts, slots = (size_t)c * (size_t)moe->top_k, row = (size_t)c * (size_t)hidden;
        kernels->route(work->router + router, experts, moe->top_k, work->probabilities + router, work->chosen + slots,
                       work->slot_weights + slots);
        if (moe->quantise)
            kernels->quantise(work->normed + row, hidden, work->quantised + row,
                              work->quantised_scales + (size_t)c * (size_t)moe->input_blocks);
    }
}

/* Lists the (column, slot) pairs of each expert, columns in order. */
static void group_by_expert(const struct moe_work *moe, int columns)
{
    struct th_lm_work *work = &moe->cpu->lm->work;
    const int experts = moe->config->experts, entries = columns * moe->top_k;
    int *first = work->expert_first;
    memset(first, 0, (size_t)(experts + 1) * sizeof(int));
    for (int i = 0; i < entries; i++) first[work->chosen[i] + 1]++;
    for (int e = 0; e < experts; e++) first[e + 1] += first[e];
    for (int i = 0; i < entries; i++) { /* first[e] runs through e's entries and ends where e + 1 begins */
        int entry = first[work->chosen[i]]++;
        work->entry_column[entry] = i / moe->top_k;
        work->entry_of_slot[i] = entry;
    }
    for (int e = experts; e > 0; e--) first[e] = first[e - 1];
    first[0] = 0;
}

static struct th_product expert_product(const struct th_expert_matrix *w, int columns)
{
    return (struct th_product){.bf16 = w->bf16,
                               .codes = w->codes,
                               .scales = w->scales,
                               .rows = w->rows,
                               .inner = w->cols,
                               .columns = columns,
                               .x_stride = w->cols,
                               .y_stride = w->rows};
}

/* Gate and up of every expert that has rows. */
static void first_products(const struct moe_work *moe, const struct th_moe_weights *weights)
{
    struct th_lm_work *work = &moe->cpu->lm->work;
    int count = 0;
    for (int e = 0; e < moe->config->experts; e++) {
        int first = work->expert_first[e], columns = work->expert_first[e + 1] - first;
        if (columns == 0) continue;
        const struct th_expert_matrix *matrices[2] = {&weights->experts[e].gate, &weights->experts[e].up};
        float *outputs[2] = {work->gate, work->up};
        for (int i = 0; i < 2; i++) {
            struct th_product product = expert_product(matrices[i], columns);
            if (TH_FAULT_IS(6)) product.scales = matrices[0]->scales;
            product.x = moe->quantise ? work->quantised : work->normed;
            product.x_scales = moe->quantise ? work->quantised_scales : NULL;
            product.x_rows = work->entry_column + first;
            product.y = outputs[i] + (size_t)first * (size_t)moe->config->expert_inner;
            product.round = th_lm_bf16(moe->cpu);
            work->products[count++] = product;
        }
    }
    th_lm_products(moe->cpu, work->products, count);
}

/* act = silu(gate) * up of each entry, quantised in its turn. */
static void activate_task(void *context, int begin, int end)
{
    const struct moe_work *moe = context;
    const struct th_lm_kernels *kernels = moe->cpu->lm_kernels;
    struct th_lm_work *work = &moe->cpu->lm->work;
    const int inner = moe->config->expert_inner;
    for (int entry = begin; entry < end; entry++) {
        size_t row = (size_t)entry * (size_t)inner;
        kernels->silu_mul(work->gate + row, work->up + row, inner, th_lm_bf16(moe->cpu), work->gate + row);
        if (moe->quantise)
            kernels->quantise(work->gate + row, inner, work->gate + row,
                              work->inner_scales + (size_t)entry * (size_t)moe->inner_blocks);
    }
}

/* Down of every expert, kept unrounded: the slot's weight multiplies first. The shared expert's down goes along. */
static void second_products(const struct moe_work *moe, const struct th_moe_weights *weights, int columns)
{
    struct th_lm_work *work = &moe->cpu->lm->work;
    int count = 0;
    for (int e = 0; e < moe->config->experts; e++) {
        int first = work->expert_first[e], entries = work->expert_first[e + 1] - first;
        if (entries == 0) continue;
        struct th_product product = expert_product(&weights->experts[e].down, entries);
        product.x = work->gate + (size_t)first * (size_t)moe->config->expert_inner;
        product.x_scales = moe->quantise ? work->inner_scales + (size_t)first * (size_t)moe->inner_blocks : NULL;
        product.y = work->down + (size_t)first * (size_t)moe->config->hidden;
        work->products[count++] = product;
    }
    work->products[count++] = th_lm_product(moe->cpu, &weights->shared_down, work->shared_gate, columns, work->shared);
    th_lm_products(moe->cpu, work->products, count);
}

static void mix_task(void *context, int begin, int end)
{
    const struct moe_work *moe = context;
    struct th_lm_work *work = &moe->cpu->lm->work;
    const int hidden = moe->config->hidden;
    for (int c = begin; c < end; c++) {
        size_t slots = (size_t)c * (size_t)moe->top_k, row = (size_t)c * (size_t)hidden;
        float open = moe->cpu->lm_kernels->sigmoid(work->shared_open[c]);
        moe->cpu->lm_kernels->mix(work->down, work->entry_of_slot + slots, work->slot_weights + slots, moe->top_k,
                                  work->shared + row, open, hidden, th_lm_bf16(moe->cpu), work->branch + row);
    }
}

/* A value of the E4M3 grid as its code. */
static float e4m3_code(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 31 << 7, magnitude = bits & 0x7FFFFFFFu;
    uint32_t code = fabsf(value) < 0x1p-6f ? (uint32_t)(fabsf(value) * 512.0f) : (magnitude >> 20) - ((127u - 7u) << 3);
    return (float)(sign | code);
}

static void probe_routing(const struct moe_work *moe, const struct th_lm_batch *batch, int layer)
{
    struct th_cpu *cpu = moe->cpu;
    struct th_lm_work *work = &cpu->lm->work;
    if (cpu->probe == NULL) return;
    const int hidden = moe->config->hidden;
    th_lm_probe(cpu, batch, "moe_input", layer, hidden, work->normed);
    th_lm_probe(cpu, batch, "moe_router", layer, moe->config->experts, work->router);
    for (int i = 0; i < batch->columns * moe->top_k; i++) work->down[i] = (float)work->chosen[i]; /* not in use yet */
    th_lm_probe(cpu, batch, "moe_experts", layer, moe->top_k, work->down);
    th_lm_probe(cpu, batch, "moe_weights", layer, moe->top_k, work->slot_weights);
    if (!moe->quantise) return;
    for (int i = 0; i < batch->columns * hidden; i++) work->probe[i] = e4m3_code(work->quantised[i]);
    th_lm_probe(cpu, batch, "moe_codes", layer, hidden, work->probe);
    th_lm_probe(cpu, batch, "moe_scales", layer, moe->input_blocks, work->quantised_scales);
}

void th_lm_moe(struct th_cpu *cpu, const struct th_lm_batch *batch, int layer)
{
    const struct th_backbone_config *config = &cpu->model->config.backbone;
    const struct th_moe_weights *weights = &cpu->model->layers[layer].moe;
    struct th_lm_work *work = &cpu->lm->work;
    const int columns = batch->columns;
    struct moe_work moe = {.cpu = cpu,
                           .config = config,
                           .top_k = config->top_k - TH_FAULT_IS(5),
                           .quantise = cpu->options.act_quant && cpu->model->config.expert_format == TH_EXPERTS_FP8,
                           .inner_blocks = blocks_of(config->expert_inner),
                           .input_blocks = blocks_of(config->hidden)};

    struct th_product inputs[] = {th_lm_product(cpu, &weights->router, work->normed, columns, work->router),
                                  th_lm_product(cpu, &weights->shared_expert_gate, work->normed, columns, work->shared_open),
                                  th_lm_product(cpu, &weights->shared_gate, work->normed, columns, work->shared_gate),
                                  th_lm_product(cpu, &weights->shared_up, work->normed, columns, work->shared_up)};
    inputs[1].round = 0; /* the shared expert's gate stays in 32 bits */
    th_lm_products(cpu, inputs, 4);
    th_lm_silu_rows(cpu, work->shared_gate, work->shared_up, columns, config->shared_inner);

    th_lm_each(cpu, columns, config->hidden * 2 + config->experts * (moe.top_k + 4), route_task, &moe);
    probe_routing(&moe, batch, layer);
    group_by_expert(&moe, columns);
    first_products(&moe, weights);
    th_lm_each(cpu, columns * moe.top_k, config->expert_inner * 8, activate_task, &moe);
    second_products(&moe, weights, columns);
    th_lm_each(cpu, columns, config->hidden * (moe.top_k + 1), mix_task, &moe);
}
