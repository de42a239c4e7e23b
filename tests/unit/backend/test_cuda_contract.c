/* test_cuda_contract.c - the kernels keep their contract, and each gate of it can fail; every __global__ function is registered. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <dirent.h>

#include "backend/cuda/contract.h"
#include "backend/cuda/kernels.h"

static char last[700];

static void keep(void *context, const char *line)
{
    (void)context;
    if (strstr(line, "broken") != NULL) snprintf(last, sizeof last, "%s", line);
}

static void kernels_keep_their_contract(void **state)
{
    (void)state;
    thespis_error error;
    int broken = -1;
    last[0] = '\0';
    if (th_cuda_check_kernels(0, TH_CONTRACT_SOUND, keep, NULL, &broken, &error) != THESPIS_OK) fail_msg("%s", error.message);
    if (broken != 0) fail_msg("%s", last);
}

static void every_gate_can_fail(void **state)
{
    (void)state;
    static const char *const gates[] = {
        "", "class is broken", "repeat is broken", "edge is broken", "order is broken", "limits is broken"};
    for (int fault = TH_CONTRACT_CLASS_FAULT; fault <= TH_CONTRACT_LIMITS_FAULT; fault++) {
        thespis_error error;
        int broken = 0;
        last[0] = '\0';
        assert_int_equal(th_cuda_check_kernels(0, fault, keep, NULL, &broken, &error), THESPIS_OK);
        assert_true(broken > 0);
        if (strstr(last, gates[fault]) == NULL) fail_msg("fault %d: %s", fault, last);
    }
}

static int is_registered(const char *name, size_t length)
{
    const struct th_cuda_kernel *list;
    for (size_t i = 0; (list = th_cuda_kernel_list(i)) != NULL; i++)
        for (; list->name != NULL; list++)
            if (strncmp(list->name, name, length) == 0 && (list->name[length] == '\0' || list->name[length] == '<')) return 1;
    return 0;
}

/* What follows the parentheses that open at `at`, and white space. */
static char *behind_parentheses(char *at)
{
    int depth = 0;
    do {
        depth += (*at == '(') - (*at == ')');
        at++;
    } while (depth > 0 && *at != '\0');
    return at + strspn(at, " \n");
}

/* Names of functions declared __global__ in a file; *found counts them. */
static void check_file(const char *path, int *found)
{
    FILE *in = fopen(path, "rb");
    assert_non_null(in);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    size_t bytes = fread(text, 1, (1 << 20) - 1, in);
    assert_int_equal(fclose(in), 0);
    assert_true(bytes < (1 << 20) - 1);
    for (char *at = strstr(text, "__global__"); at != NULL; at = strstr(at + 1, "__global__")) {
        char *end = at + strlen("__global__");
        if (strncmp(end, " void ", 6) == 0 || strncmp(end, " __launch_bounds__", 18) == 0) {
            char *name = strstr(end, "void ");
            assert_non_null(name);
            name += 5;
            if (strncmp(name, "__launch_bounds__(", 18) == 0) name = behind_parentheses(name + 17);
            size_t length = strcspn(name, "( \n");
            if (!is_registered(name, length))
                fail_msg("%s: kernel %.*s is not in its TH_CUDA_KERNELS list", path, (int)length, name);
            ++*found;
        }
    }
    free(text);
}

static void every_kernel_is_registered(void **state)
{
    (void)state;
    int found = 0;
    DIR *folder = opendir(TEST_SOURCE_DIR "/src/backend/cuda");
    if (folder == NULL) skip(); /* a machine without the sources */
    for (struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
        char path[1000];
        const char *dot = strrchr(entry->d_name, '.');
        if (dot == NULL || (strcmp(dot, ".cu") != 0 && strcmp(dot, ".cuh") != 0)) continue;
        snprintf(path, sizeof path, TEST_SOURCE_DIR "/src/backend/cuda/%.255s", entry->d_name);
        check_file(path, &found);
    }
    closedir(folder);
    assert_true(found > 20);
    assert_false(is_registered("no_such_kernel", 14));
}

int main(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_keep_their_contract),
        cmocka_unit_test(every_gate_can_fail),
        cmocka_unit_test(every_kernel_is_registered),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
