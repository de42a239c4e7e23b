/* fibers.c - a block's threads as fibers: each runs until it waits for others or ends. Waiting that can never end is reported with
 * the kernel and the place, and fails the launch as a fault on a device would. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cuda_emu/emu.h"

#if defined(__SANITIZE_ADDRESS__)
#define EMU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMU_ASAN 1
#endif
#endif
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define STACK_BYTES ((size_t)512 << 10)
#else
#define STACK_BYTES ((size_t)128 << 10)
#endif

#define MOST_THREADS 1024
#define GROUPS 8

enum state { READY, AT_BARRIER, IN_WARP, ENDED };

struct fiber {
    void *stack_pointer;
    unsigned char *stack;
    enum state state;
    int number; /* in the block; warp number / 32 */
    struct th_emu_index index;
    const char *file; /* the barrier it waits at */
    int line, kind;
};

/* Threads of a warp that meet with one mask. Two sets of slots take turns: who is ahead by one meeting fills the other set. */
struct group {
    uint32_t mask, arrived;
    unsigned turn;
    int kind;
    unsigned char slots[2][32][TH_EMU_SLOT];
};
struct warp {
    int groups;
    struct group group[GROUPS];
};

struct th_emu_index th_emu_thread_index, th_emu_block_index, th_emu_block_size, th_emu_grid_size;
void *th_emu_dynamic_shared;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* one kernel at a time: __shared__ arrays are static */
static struct fiber fibers[MOST_THREADS], *self;
static struct warp warps[MOST_THREADS / 32];
static void *scheduler_pointer;
static int thread_count;
static const struct th_emu_kernel *running;
static const void *running_arguments;
static int broken;
static char report[1024];

#ifdef EMU_ASAN
static const void *scheduler_stack;
static size_t scheduler_bytes;
static void *scheduler_fake;
#endif

const char *th_emu_report(void)
{
    return report;
}

/* ---- switching ----------------------------------------------------------------------------------------------------------------
 */

/* Saves the callee-saved registers on the stack that is left, stores its pointer in *from, and goes on with the stack `to`. */
void th_emu_switch(void **from, void *to);
void th_emu_enter(void);

#if defined(__x86_64__)
__asm__(".text\n"
        ".globl th_emu_switch\n.hidden th_emu_switch\n.type th_emu_switch,@function\n"
        "th_emu_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq %r15\n"
        "    movq %rsp, (%rdi)\n    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size th_emu_switch, .-th_emu_switch\n");
static void *first_frame(unsigned char *top)
{
    void **at = (void **)(void *)top;
    *--at = NULL; /* a return address that is never used */
    *--at = (void *)(uintptr_t)th_emu_enter;
    for (int i = 0; i < 6; i++) *--at = NULL;
    return at;
}
#elif defined(__aarch64__)
__asm__(".text\n"
        ".globl th_emu_switch\n.hidden th_emu_switch\n.type th_emu_switch,%function\n"
        "th_emu_switch:\n"
        "    stp x19, x20, [sp, #-160]!\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
        "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
        "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
        "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
        "    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n    ldp x25, x26, [sp, #48]\n"
        "    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
        "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
        "    ldp x19, x20, [sp], #160\n    ret\n"
        ".size th_emu_switch, .-th_emu_switch\n");
static void *first_frame(unsigned char *top)
{
    void **at = (void **)(void *)(top - 160);
    memset(at, 0, 160);
    at[11] = (void *)(uintptr_t)th_emu_enter; /* x30 */
    return at;
}
#else
#error "the emulator switches stacks on x86-64 and aarch64 only"
#endif

static void to_scheduler(void)
{
#ifdef EMU_ASAN
    void *fake = NULL;
    __sanitizer_start_switch_fiber(self->state == ENDED ? NULL : &fake, scheduler_stack, scheduler_bytes);
    th_emu_switch(&self->stack_pointer, scheduler_pointer);
    __sanitizer_finish_switch_fiber(fake, &scheduler_stack, &scheduler_bytes);
#else
    th_emu_switch(&self->stack_pointer, scheduler_pointer);
#endif
}

static void to_fiber(struct fiber *fiber)
{
    self = fiber;
    th_emu_thread_index = fiber->index;
#ifdef EMU_ASAN
    __sanitizer_start_switch_fiber(&scheduler_fake, fiber->stack, STACK_BYTES);
    th_emu_switch(&scheduler_pointer, fiber->stack_pointer);
    __sanitizer_finish_switch_fiber(scheduler_fake, NULL, NULL);
#else
    th_emu_switch(&scheduler_pointer, fiber->stack_pointer);
#endif
}

void th_emu_enter(void)
{
#ifdef EMU_ASAN
    __sanitizer_finish_switch_fiber(NULL, &scheduler_stack, &scheduler_bytes);
#endif
    running->run(running_arguments);
    self->state = ENDED;
    to_scheduler();
    abort(); /* an ended fiber is never run again */
}

/* ---- meeting ------------------------------------------------------------------------------------------------------------------
 */

static void fail(const char *what)
{
    if (!broken)
        snprintf(report, sizeof report, "th_launch(%s): block %u,%u,%u: %s", running->text, th_emu_block_index.x,
                 th_emu_block_index.y, th_emu_block_index.z, what);
    broken = 1;
}

void th_emu_block_barrier(const char *file, int line)
{
    self->file = file;
    self->line = line;
    self->state = AT_BARRIER;
    to_scheduler();
}

int th_emu_lane(void)
{
    return self->number % 32;
}

static struct group *group_of(struct warp *warp, uint32_t mask)
{
    for (int i = 0; i < warp->groups; i++)
        if (warp->group[i].mask == mask) return &warp->group[i];
    if (warp->groups == GROUPS) return NULL;
    struct group *group = &warp->group[warp->groups++];
    group->mask = mask;
    group->arrived = 0;
    group->turn = 0;
    return group;
}

/* Ends this thread's part after a mistake: the launch fails anyway. */
static void stop(const char *what)
{
    fail(what);
    self->state = ENDED;
    to_scheduler();
    abort();
}

static uint32_t present(int warp)
{
    int left = thread_count - warp * 32;
    return left >= 32 ? 0xFFFFFFFFu : (1u << left) - 1u;
}

const unsigned char *th_emu_warp(uint32_t mask, int kind, const void *in, size_t bytes, void (*finish)(unsigned char *slots))
{
    const int lane = self->number % 32, number = self->number / 32;
    mask &= present(number);
    if (!(mask >> lane & 1)) stop("a warp operation's mask leaves out the thread that calls it");
    struct group *group = group_of(&warps[number], mask);
    if (group == NULL) stop("a warp met with more than 8 different masks");
    if (group->arrived == 0) {
        group->kind = kind;
        if (mask != 0xFFFFFFFFu)
            memset(group->slots[group->turn & 1], 0, sizeof group->slots[0]); /* absent threads count as zeros */
    }
    if (group->kind != kind) stop("threads of a warp met in different operations");
    unsigned turn = group->turn & 1;
    memcpy(group->slots[turn][lane], in, bytes);
    group->arrived |= 1u << lane;
    if (group->arrived != mask) {
        self->state = IN_WARP;
        self->kind = kind;
        to_scheduler();
        return &group->slots[turn][0][0];
    }
    if (finish != NULL) finish(&group->slots[turn][0][0]);
    group->arrived = 0;
    group->turn++;
    for (int i = 0; i < 32; i++)
        if (mask >> i & 1 && i != lane) fibers[number * 32 + i].state = READY;
    return &group->slots[turn][0][0];
}

/* ---- blocks -------------------------------------------------------------------------------------------------------------------
 */

static int run_warp(int number)
{
    const int first = number * 32, end = first + 32 < thread_count ? first + 32 : thread_count;
    int ran = 0, some = 1;
    while (some && !broken) {
        some = 0;
        for (int i = first; i < end; i++)
            if (fibers[i].state == READY) {
                to_fiber(&fibers[i]);
                some = ran = 1;
            }
    }
    return ran;
}

static void describe_stuck(void)
{
    char text[512];
    int counts[4] = {0}, at = -1, in = -1;
    for (int i = 0; i < thread_count; i++) {
        counts[fibers[i].state]++;
        if (fibers[i].state == AT_BARRIER) at = i;
        if (fibers[i].state == IN_WARP) in = i;
    }
    snprintf(text, sizeof text,
             "deadlock: %d threads ended, %d wait at __syncthreads (thread %d: %s:%d), %d in a warp operation (thread %d, kind %d)",
             counts[ENDED], counts[AT_BARRIER], at, at >= 0 ? fibers[at].file : "-", at >= 0 ? fibers[at].line : 0, counts[IN_WARP],
             in, in >= 0 ? fibers[in].kind : 0);
    fail(text);
}

/* All threads at one barrier go on; 0 when the block has ended or is stuck. */
static int pass_barrier(void)
{
    int waiting = 0, ended = 0;
    for (int i = 0; i < thread_count; i++) {
        waiting += fibers[i].state == AT_BARRIER;
        ended += fibers[i].state == ENDED;
    }
    if (ended == thread_count) return 0;
    if (waiting != thread_count) {
        describe_stuck();
        return 0;
    }
    for (int i = 1; i < thread_count; i++)
        if (fibers[i].line != fibers[0].line || strcmp(fibers[i].file, fibers[0].file) != 0) {
            char text[512];
            snprintf(text, sizeof text, "threads 0 and %d wait at different barriers: %s:%d and %s:%d", i, fibers[0].file,
                     fibers[0].line, fibers[i].file, fibers[i].line);
            fail(text);
            return 0;
        }
    for (int i = 0; i < thread_count; i++) fibers[i].state = READY;
    return 1;
}

static void start_block(void)
{
    for (int i = 0; i < thread_count; i++) {
        struct fiber *fiber = &fibers[i];
        fiber->stack_pointer = first_frame(fiber->stack + STACK_BYTES);
        fiber->state = READY;
#ifdef EMU_ASAN
        __asan_unpoison_memory_region(fiber->stack, STACK_BYTES);
#endif
    }
    for (int w = 0; w * 32 < thread_count; w++) warps[w].groups = 0;
    if (running->shared > 0) memset(th_emu_dynamic_shared, 0xFF, running->shared); /* NaN: what nobody wrote shows */
}

static void run_block(void)
{
    start_block();
    do {
        for (int w = 0; w * 32 < thread_count && !broken; w++) run_warp(w);
    } while (!broken && pass_barrier());
}

static int make_fibers(void)
{
    struct th_emu_index size = running->block;
    thread_count = (int)(size.x * size.y * size.z);
    for (int i = 0; i < thread_count; i++) {
        struct fiber *fiber = &fibers[i];
        unsigned n = (unsigned)i;
        if (fiber->stack == NULL) {
            void *stack = mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (stack == MAP_FAILED) return 0;
            fiber->stack = stack;
        }
        fiber->number = i;
        fiber->index = (struct th_emu_index){n % size.x, n / size.x % size.y, n / size.x / size.y};
    }
    return 1;
}

static cudaError_t run_grid(void)
{
    th_emu_dynamic_shared = NULL;
    if (running->shared > 0 && posix_memalign(&th_emu_dynamic_shared, 128, running->shared) != 0) return cudaErrorMemoryAllocation;
    struct th_emu_index grid = running->grid;
    th_emu_grid_size = grid;
    th_emu_block_size = running->block;
    for (unsigned z = 0; z < grid.z && !broken; z++)
        for (unsigned y = 0; y < grid.y && !broken; y++)
            for (unsigned x = 0; x < grid.x && !broken; x++) {
                th_emu_block_index = (struct th_emu_index){x, y, z};
                run_block();
            }
    free(th_emu_dynamic_shared);
    return broken ? cudaErrorLaunchFailure : cudaSuccess;
}

static int launchable(const struct th_emu_kernel *k)
{
    unsigned long long threads = (unsigned long long)k->block.x * k->block.y * k->block.z;
    return threads >= 1 && threads <= MOST_THREADS && k->block.z <= 64 && k->grid.x >= 1 && k->grid.y >= 1 && k->grid.z >= 1 &&
           k->grid.x <= 0x7FFFFFFFu && k->grid.y <= 65535 && k->grid.z <= 65535 && k->shared <= 232448;
}

cudaError_t th_emu_run(const struct th_emu_kernel *kernel, const void *arguments)
{
    pthread_mutex_lock(&mutex);
    broken = 0;
    running = kernel;
    running_arguments = arguments;
    cudaError_t code = cudaErrorInvalidValue;
    if (launchable(kernel))
        code = make_fibers() ? run_grid() : cudaErrorMemoryAllocation;
    else
        snprintf(report, sizeof report, "th_launch(%s): grid %u,%u,%u of %u,%u,%u threads with %zu shared bytes", kernel->text,
                 kernel->grid.x, kernel->grid.y, kernel->grid.z, kernel->block.x, kernel->block.y, kernel->block.z, kernel->shared);
    if (code != cudaSuccess) fprintf(stderr, "emulated device: %s\n", report);
    pthread_mutex_unlock(&mutex);
    return code;
}

/* ---- matrix instructions -------------------------------------------------------------------------------------------------------
 */

/* A slot: c (4 floats), a (4 words), b (2 words). Products are exact in double and summed there, then rounded once: closer than a
 * device, whose own order and width are not published. */
struct operands {
    float c[4];
    uint32_t a[4], b[2];
};

static void finish(unsigned char *slots, int inputs, float (*value)(const uint32_t *words, int i))
{
    /* values per 32-bit word: 2 of bf16, 4 of E4M3; `inputs` are 8 words of a row */
    const int per = inputs / 8;
    float a[16][32], b[32][8]; /* b turned: a loop over columns that a compiler can do in one go */
    double sum[16][8];
    struct operands *o = (struct operands *)(void *)slots;
#define AT(lane) ((struct operands *)(void *)(slots + (size_t)(lane)*TH_EMU_SLOT))
    for (int lane = 0; lane < 32; lane++) {
        o = AT(lane);
        const int g = lane / 4, q = lane % 4;
        for (int i = 0; i < per; i++) {
            a[g][per * q + i] = value(&o->a[0], i);
            a[g + 8][per * q + i] = value(&o->a[1], i);
            a[g][per * (q + 4) + i] = value(&o->a[2], i);
            a[g + 8][per * (q + 4) + i] = value(&o->a[3], i);
            b[per * q + i][g] = value(&o->b[0], i);
            b[per * (q + 4) + i][g] = value(&o->b[1], i);
        }
    }
    for (int r = 0; r < 16; r++) {
        for (int c = 0; c < 8; c++) sum[r][c] = 0;
        for (int k = 0; k < inputs; k++)
            for (int c = 0; c < 8; c++) sum[r][c] += (double)a[r][k] * (double)b[k][c];
    }
    for (int lane = 0; lane < 32; lane++) {
        o = AT(lane);
        const int g = lane / 4, q = lane % 4;
        o->c[0] = (float)(sum[g][2 * q] + (double)o->c[0]);
        o->c[1] = (float)(sum[g][2 * q + 1] + (double)o->c[1]);
        o->c[2] = (float)(sum[g + 8][2 * q] + (double)o->c[2]);
        o->c[3] = (float)(sum[g + 8][2 * q + 1] + (double)o->c[3]);
    }
#undef AT
}

static float bf16_value(const uint32_t *word, int i)
{
    uint32_t bits = *word >> (16 * i) << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static float e4m3_value(const uint32_t *word, int i)
{
    static float table[256];
    static int made;
    if (!made) {
        for (int code = 0; code < 256; code++) {
            int exponent = code >> 3 & 15, mantissa = code & 7;
            float size = exponent == 0 ? (float)mantissa / 512.0f : (1.0f + (float)mantissa / 8.0f);
            for (int e = exponent; exponent != 0 && e > 7; e--) size *= 2.0f;
            for (int e = exponent; exponent != 0 && e < 7; e++) size /= 2.0f;
            if (exponent == 15 && mantissa == 7) size = __builtin_nanf("");
            table[code] = code & 128 ? -size : size;
        }
        made = 1;
    }
    return table[*word >> (8 * i) & 255];
}

void th_emu_finish_bf16(unsigned char *slots)
{
    finish(slots, 16, bf16_value);
}
static float f16_value(const uint32_t *word, int i)
{
    uint32_t half = *word >> (16 * i) & 0xFFFF, exponent = half >> 10 & 31, mantissa = half & 1023;
    uint32_t bits = (half & 0x8000) << 16 | (exponent == 31 ? 0x7F800000 : (exponent + 112) << 23) | mantissa << 13;
    float value;
    memcpy(&value, &bits, 4);
    if (exponent == 0) value = (half & 0x8000 ? -1.0f : 1.0f) * (float)mantissa / 16777216.0f;
    return value;
}

void th_emu_finish_f16(unsigned char *slots)
{
    finish(slots, 16, f16_value);
}
void th_emu_finish_e4m3(unsigned char *slots)
{
    finish(slots, 32, e4m3_value);
}
