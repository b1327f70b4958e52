/*
 * The memory and the recorded work of a backend that a module brings: what kernels.h says beside the arithmetic.
 */
#include <string.h>

#include "tests/unit/kernels_support.h"

static struct kernels *backend;
static const struct kernel_table *table;

static int open_backend(void **state)
{
    (void)state;
    struct kernels_failure why;
    backend = kernels_module()->kernels_open(&(struct kernels_options){DTYPE_FP32, 1}, 0, &why);
    if (!backend) fail_msg("%s", why.text);
    table = backend->table;
    return 0;
}

static int close_backend(void **state)
{
    (void)state;
    kernels_close(backend);
    return 0;
}

static void take(void *to, const void *from, size_t bytes)
{
    const char *failure = table->download(backend, to, from, bytes);
    if (failure) fail_msg("%s", failure);
}

static void memory_is_zeroed_aligned_and_the_backends_own(void **state)
{
    (void)state;
    assert_false(table->on_host);
    unsigned char host[1000];
    for (size_t bytes = 0; bytes <= sizeof host; bytes += 333) {
        char *memory = table->allocate(backend, bytes);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 256, 0);
        memset(host, 7, sizeof host);
        take(host, memory, bytes);
        for (size_t i = 0; i < sizeof host; i++) assert_int_equal(host[i], i < bytes ? 0 : 7);
        table->release(backend, memory);
    }
    table->release(backend, NULL);
    uint64_t left, all;
    assert_true(table->memory_left(backend, &left, &all));
    assert_true(left > 0 && left < all);
    assert_null(table->allocate(backend, all + 1));
    assert_null(table->wait(backend)); /* which is no failure of the device */
}

static void bytes_are_copied_and_cleared_where_asked(void **state)
{
    (void)state;
    char *a = table->allocate(backend, 64), *b = table->allocate(backend, 64), host[64];
    for (size_t i = 0; i < sizeof host; i++) host[i] = (char)i;
    table->upload(backend, a, host, 64);
    table->copy(backend, b + 8, a + 1, 40);
    table->copy(backend, b, b, 64);
    table->clear(backend, b + 10, 3);
    take(host, b, 64);
    for (size_t i = 0; i < sizeof host; i++)
        assert_int_equal(host[i], i < 8 || i >= 48 || (i >= 10 && i < 13) ? 0 : (char)(i - 7));
    table->release(backend, a), table->release(backend, b);
}

/* More than the pinned memory holds, from a source that is written again at once. */
static void what_was_uploaded_may_be_written_again(void **state)
{
    (void)state;
    enum { PIECES = 90 };
    const size_t piece = ((size_t)1 << 18) + 12;
    uint32_t *host = malloc(piece);
    char *memory = table->allocate(backend, PIECES * piece);
    for (uint32_t i = 0; i < PIECES; i++) {
        for (size_t w = 0; w < piece / 4; w++) host[w] = i;
        table->upload(backend, memory + i * piece, host, piece);
    }
    for (uint32_t i = 0; i < PIECES; i++) {
        take(host, memory + i * piece, piece);
        assert_int_equal(host[0], i);
        assert_int_equal(host[piece / 4 - 1], i);
    }
    char *large = malloc(PIECES * piece);
    for (size_t i = 0; i < PIECES * piece; i++) large[i] = (char)(i / 4096);
    table->upload(backend, memory, large, PIECES * piece);
    memset(large, 0, PIECES * piece);
    take(large, memory, PIECES * piece);
    for (size_t i = 0; i < PIECES * piece; i++) assert_int_equal(large[i], (char)(i / 4096));
    table->release(backend, memory);
    free(host), free(large);
}

/* sum += x; x = 0 — written down once, run with what is in memory each time. */
static void recorded_work_runs_when_it_is_replayed(void **state)
{
    (void)state;
    float *x = table->allocate(backend, 12), *sum = table->allocate(backend, 12), host[3] = {1, 2, 4};
    table->upload(backend, x, host, 12);
    table->record(backend);
    table->accumulate(backend, sum, x, 3);
    table->clear(backend, x, 12);
    struct recording *recording = table->recorded(backend);
    assert_non_null(recording);
    take(host, sum, 12);
    assert_true(host[0] == 0 && host[2] == 0); /* nothing has run */
    for (int i = 0; i < 3; i++) {
        host[0] = 1, host[1] = 10, host[2] = (float)i;
        table->upload(backend, x, host, 12);
        table->replay(backend, recording);
    }
    table->replay(backend, recording); /* of zeros */
    take(host, sum, 12);
    assert_true(host[0] == 3 && host[1] == 30 && host[2] == 3);
    table->recording_close(backend, recording);
    table->recording_close(backend, NULL);
    table->release(backend, x), table->release(backend, sum);
}

static void ranges_follow_each_other(void **state)
{
    (void)state;
    table->range_begin(backend, "forward");
    table->range_begin(backend, "backward");
    table->range_end(backend);
    table->range_end(backend);
    assert_null(table->wait(backend));
}

static void devices_are_described_and_others_refused(void **state)
{
    (void)state;
    struct cuda_device_info info;
    struct kernels_failure why;
    int count = 0;
    assert_true(kernels_module()->device_count(&count, &why));
    assert_true(count >= 1);
    assert_true(kernels_module()->device_info(0, &info, &why));
    assert_true(info.name[0] != 0 && info.memory > 0 && info.capability >= 80 && info.multiprocessors > 0);
    assert_null(kernels_module()->kernels_open(&(struct kernels_options){DTYPE_FP32, 1}, count, &why));
    assert_true(why.unavailable);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_zeroed_aligned_and_the_backends_own),
        cmocka_unit_test(bytes_are_copied_and_cleared_where_asked),
        cmocka_unit_test(what_was_uploaded_may_be_written_again),
        cmocka_unit_test(recorded_work_runs_when_it_is_replayed),
        cmocka_unit_test(ranges_follow_each_other),
        cmocka_unit_test(devices_are_described_and_others_refused),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
