/*
 * A device that fails: the first error is the one that is told, by wait and download, from then on. What fails while
 * work is recorded is only a recording that is not made.
 */
#include <string.h>

#include "tests/unit/kernels_support.h"
#include "worker/device.h"

static struct kernels *backend;

/* Whether waiting tells of a failure that has this in its text. */
static void assert_told(const char *what)
{
    struct error error;
    float host;
    assert_int_equal(device_wait(backend, &error), -STATUS_INTERNAL);
    if (!strstr(error.text, what)) fail_msg("\"%s\" does not name %s", error.text, what);
    assert_int_equal(device_download(backend, &host, NULL, 0, &error), -STATUS_INTERNAL);
    assert_non_null(strstr(error.text, what));
}

static void a_call_that_fails_is_named_and_stays_the_reason(void **state)
{
    (void)state;
    struct kernels_failure why;
    backend = kernels_module()->kernels_open(&(struct kernels_options){DTYPE_FP32, 1}, 0, &why);
    if (!backend) fail_msg("%s", why.text);
    float *x = backend->table->allocate(backend, 64);
    backend->table->add(backend, x, x, 1, x, 16);
    assert_null(backend->table->wait(backend));
    backend->table->record(backend);
    backend->table->accumulate(backend, x, x + 8, 8); /* the third launch: opening was one */
    assert_null(backend->table->recorded(backend));
    backend->table->record(backend);
    backend->table->add(backend, x, x, 1, x, 16);
    assert_null(backend->table->recorded(backend)); /* it cannot be made runnable */
    assert_null(backend->table->wait(backend));
    backend->table->accumulate(backend, x, x + 8, 8); /* the fifth */
    backend->table->add(backend, x, x, 1, x, 16);
    assert_told("accumulate");
    backend->table->cast(backend, x, x, 16);
    assert_told("accumulate");
    backend->table->release(backend, x);
    kernels_close(backend);
}

int main(void)
{
    setenv("SIM_FAIL", "cudaLaunchKernel:3:701,cudaLaunchKernel:5:701,cudaGraphInstantiate:1:2", 1);
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_call_that_fails_is_named_and_stays_the_reason)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
