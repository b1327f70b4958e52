/* What server reflection finds in the descriptors that are built in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "proto/descriptors.h"

static void every_kind_of_name_is_found_in_its_file(void **state)
{
    (void)state;
    static const struct {
        const char *symbol, *file;
    } cases[] = {
        {"gacc.v1.Control", "gacc/v1/control.proto"},
        {"gacc.v1.Control.GetStatus", "gacc/v1/control.proto"},
        {"gacc.v1.Status", "gacc/v1/control.proto"},
        {"gacc.v1.Status.loss", "gacc/v1/control.proto"},
        {"gacc.v1.WorkerMessage.body", "gacc/v1/workers.proto"},
        {"gacc.v1.State", "gacc/v1/workers.proto"},
        {"gacc.v1.JobSpec", "gacc/v1/job.proto"},
        {"grpc.health.v1.HealthCheckResponse.ServingStatus", "grpc/health/v1/health.proto"},
        {"grpc.reflection.v1.ServerReflection", "grpc/reflection/v1/reflection.proto"},
        {"grpc.reflection.v1alpha.ServerReflection", "grpc/reflection/v1alpha/reflection.proto"},
    };
    struct descriptors *descriptors;
    struct error error;
    assert_int_equal(descriptors_open(&descriptors, &error), 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const int file = descriptors_find_file(descriptors, cases[i].file);
        assert_true(file >= 0);
        assert_int_equal(descriptors_find_symbol(descriptors, cases[i].symbol), file);
    }
    descriptors_close(descriptors);
}

static void what_is_not_there_is_not_found(void **state)
{
    (void)state;
    static const char *const symbols[] = {"",
                                          ".",
                                          "gacc",
                                          "gacc.v1",
                                          "gacc.v1.",
                                          "gacc.v1.Control.",
                                          "gacc.v1.Contro",
                                          "gacc.v1.Controls",
                                          "gacc.v1.Control.Get",
                                          "gacc.v1.Control.GetStatus.x",
                                          ".gacc.v1.Control",
                                          "gacc.v1.Status.loss.x",
                                          "grpc.reflection.v1a.ServerReflection"};
    struct descriptors *descriptors;
    struct error error;
    assert_int_equal(descriptors_open(&descriptors, &error), 0);
    for (size_t i = 0; i < sizeof symbols / sizeof symbols[0]; i++)
        assert_int_equal(descriptors_find_symbol(descriptors, symbols[i]), -1);
    assert_int_equal(descriptors_find_file(descriptors, "control.proto"), -1);
    assert_int_equal(descriptors_find_message(descriptors, "gacc.v1.Control"), -1);
    assert_int_equal(descriptors_find_message(descriptors, "gacc.v1.Status.loss"), -1);
    assert_true(descriptors_find_message(descriptors, "gacc.v1.Status") >= 0);
    descriptors_close(descriptors);
}

static void a_file_comes_with_all_it_imports_once(void **state)
{
    (void)state;
    struct descriptors *descriptors;
    struct error error;
    ProtobufCBinaryData files[32];
    assert_int_equal(descriptors_open(&descriptors, &error), 0);
    assert_in_range(descriptors_count(descriptors), 6, 32);
    const int control = descriptors_find_file(descriptors, "gacc/v1/control.proto");
    const size_t count = descriptors_closure(descriptors, control, files);
    assert_in_range(count, 2, descriptors_count(descriptors)); /* itself and workers.proto, at least */
    for (size_t i = 0; i < count; i++)
        for (size_t j = 0; j < i; j++) assert_ptr_not_equal(files[i].data, files[j].data);
    static const char name[] = "gacc/v1/control.proto"; /* field 1 */
    assert_int_equal(files[0].data[0], 1 << 3 | 2);
    assert_memory_equal(files[0].data + 2, name, sizeof name - 1);
    const int health = descriptors_find_file(descriptors, "grpc/health/v1/health.proto");
    assert_int_equal(descriptors_closure(descriptors, health, files), 1);
    descriptors_close(descriptors);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_kind_of_name_is_found_in_its_file),
        cmocka_unit_test(what_is_not_there_is_not_found),
        cmocka_unit_test(a_file_comes_with_all_it_imports_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
