/*
 * Which device a rank gets, and what is said where there is none. Modules of tests/unit/device_module.c are put where
 * the program looks for the GPU's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/comm_threads.h"
#include "worker/device.h"

static char folder[PATH_MAX]; /* of this program */

static const char *in_folder(char *path, const char *name)
{
    snprintf(path, PATH_MAX, "%.*s/%s", PATH_MAX / 2, folder, name);
    return path;
}

static void put(const char *module, const char *place)
{
    char from[PATH_MAX], to[PATH_MAX];
    assert_int_equal(link(in_folder(from, module), in_folder(to, place)), 0);
}

/* No module anywhere. */
static int take_away(void **state)
{
    (void)state;
    char path[PATH_MAX];
    unlink(in_folder(path, "gacc_cuda.so"));
    unlink(in_folder(path, "../lib/gaccd/gacc_cuda.so"));
    return 0;
}

struct rank {
    struct comm *comm;
    enum device_wanted wanted;
    const char *sees; /* as the module has it */
    int result;
    struct error error;
    char name[160], warning[256], kernels[1024];
    bool has_device, staged;
    uint32_t control;
};

static void *open_one(void *argument)
{
    struct rank *rank = argument;
    struct device *device;
    pthread_setname_np(pthread_self(), rank->sees);
    rank->result = device_open(&device, rank->wanted, rank->comm, &rank->error);
    rank->control = rank->comm->counts.control;
    rank->has_device = device != NULL;
    if (device) {
        const struct kernels_options options = {.compute_type = DTYPE_FP32, .threads = 1};
        struct error error = {0};
        snprintf(rank->name, sizeof rank->name, "%s", device->name);
        snprintf(rank->warning, sizeof rank->warning, "%s", device->warning);
        if (!device->open_kernels(device, &options, &error))
            snprintf(rank->kernels, sizeof rank->kernels, "%s", error.text);
    }
    device_close(device);
    return NULL;
}

/* ranks: [count], in which `sees` is set. */
static void open_all(struct rank *ranks, uint32_t count, enum device_wanted wanted)
{
    struct comm *group[THREADS_MAX];
    void *arguments[THREADS_MAX];
    comm_threads_open(group, count);
    for (uint32_t r = 0; r < count; r++) {
        ranks[r].comm = group[r];
        ranks[r].wanted = wanted;
        arguments[r] = &ranks[r];
    }
    run_ranks(count, open_one, arguments);
    comm_threads_close(group, count);
    for (uint32_t r = 0; r < count; r++) assert_int_equal(ranks[r].control, 0); /* none of a step's collectives */
}

static void without_a_module_cuda_is_refused_and_auto_is_the_cpu(void **state)
{
    (void)state;
    struct rank ranks[2] = {{.sees = "gpus 2"}, {.sees = "gpus 2"}};
    open_all(ranks, 2, DEVICE_CUDA);
    for (int r = 0; r < 2; r++) {
        assert_int_equal(ranks[r].result, -STATUS_UNAVAILABLE);
        assert_int_equal(strncmp(ranks[r].error.text, "rank 0: --device cuda: there is no gacc_cuda.so in /", 51), 0);
        assert_non_null(strstr(ranks[r].error.text, "../lib/gaccd/"));
    }
    open_all(ranks, 2, DEVICE_AUTO);
    assert_int_equal(ranks[0].result, 0);
    assert_false(ranks[0].has_device);
}

static void ranks_count_around_the_visible_gpus_and_sharing_is_warned_of(void **state)
{
    (void)state;
    put("../own/gacc_cuda.so", "gacc_cuda.so");
    struct rank two[2] = {{.sees = "gpus 2"}, {.sees = "gpus 2"}};
    open_all(two, 2, DEVICE_CUDA);
    assert_string_equal(two[0].name, "cuda 0, Abacus");
    assert_string_equal(two[1].name, "cuda 1, Abacus");
    assert_string_equal(two[1].kernels, "asked for the kernels of device 1");
    assert_string_equal(two[0].warning, "");
    struct rank three[3] = {{.sees = "gpus 2"}, {.sees = "gpus 2"}, {.sees = "gpus 2"}};
    open_all(three, 3, DEVICE_CUDA);
    assert_string_equal(three[2].name, "cuda 0, Abacus");
    for (int r = 0; r < 3; r++)
        assert_string_equal(three[r].warning, "warning: ranks 0 and 2 share a GPU (Abacus): each is slower for it, and "
                                              "all collectives go by way of the host");
}

static void one_rank_without_a_gpu_is_everyones_and_auto_then_is_the_cpu(void **state)
{
    (void)state;
    put("../own/gacc_cuda.so", "../lib/gaccd/gacc_cuda.so");
    struct rank ranks[3] = {{.sees = "gpus 4"}, {.sees = "gpus 4"}, {.sees = "none"}};
    open_all(ranks, 3, DEVICE_CUDA);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].result, -STATUS_UNAVAILABLE);
        assert_string_equal(ranks[r].error.text, "rank 2: --device cuda: no CUDA-capable device is detected");
    }
    open_all(ranks, 3, DEVICE_AUTO);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(ranks[r].result, 0);
        assert_false(ranks[r].has_device);
    }
}

static void auto_opens_the_module_only_where_there_is_a_driver(void **state)
{
    (void)state;
    put("../own/gacc_cuda.so", "gacc_cuda.so");
    const bool driver =
        !access("/dev/nvidiactl", F_OK) || !access("/dev/dxg", F_OK) || !access("/dev/nvhost-gpu", F_OK);
    struct rank one = {.sees = "gpus 1"};
    open_all(&one, 1, DEVICE_AUTO);
    assert_int_equal(one.has_device, driver);
    open_all(&one, 1, DEVICE_CPU);
    assert_int_equal(one.result, 0);
    assert_false(one.has_device);
}

static void only_where_there_is_a_driver_have_the_ranks_anything_to_find_out(void **state)
{
    (void)state;
    const bool driver =
        !access("/dev/nvidiactl", F_OK) || !access("/dev/dxg", F_OK) || !access("/dev/nvhost-gpu", F_OK);
    assert_int_equal(device_settle(DEVICE_AUTO), driver ? DEVICE_AUTO : DEVICE_CPU);
    assert_int_equal(device_settle(DEVICE_CUDA), DEVICE_CUDA);
    assert_int_equal(device_settle(DEVICE_CPU), DEVICE_CPU);
}

static void a_module_of_another_program_is_refused(void **state)
{
    (void)state;
    char path[PATH_MAX];
    put("../other/gacc_cuda.so", "gacc_cuda.so");
    struct rank one = {.sees = "gpus 1"};
    open_all(&one, 1, DEVICE_CUDA);
    assert_non_null(strstr(one.error.text, "is of another gaccd: its interface is 77, not "));
    take_away(NULL);
    FILE *file = fopen(in_folder(path, "gacc_cuda.so"), "w");
    assert_non_null(file);
    fputs("no library", file);
    fclose(file);
    open_all(&one, 1, DEVICE_CUDA);
    assert_int_equal(one.result, -STATUS_UNAVAILABLE);
    assert_non_null(strstr(one.error.text, "gacc_cuda.so: file too short"));
}

int main(void)
{
    char path[PATH_MAX] = "";
    if (readlink("/proc/self/exe", path, sizeof path - 1) < 0) return 1;
    snprintf(folder, sizeof folder, "%s", dirname(path));
    mkdir(in_folder(path, "../lib"), 0777);
    mkdir(in_folder(path, "../lib/gaccd"), 0777);
    take_away(NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(without_a_module_cuda_is_refused_and_auto_is_the_cpu, take_away),
        cmocka_unit_test_teardown(ranks_count_around_the_visible_gpus_and_sharing_is_warned_of, take_away),
        cmocka_unit_test_teardown(one_rank_without_a_gpu_is_everyones_and_auto_then_is_the_cpu, take_away),
        cmocka_unit_test_teardown(auto_opens_the_module_only_where_there_is_a_driver, take_away),
        cmocka_unit_test(only_where_there_is_a_driver_have_the_ranks_anything_to_find_out),
        cmocka_unit_test_teardown(a_module_of_another_program_is_refused, take_away),
    };
    return cmocka_run_group_tests_name("device_open", tests, NULL, NULL);
}
