/* Errors that come over the wire: whatever number and text a peer sends, an exit status of ours and one line come out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/error.h"

static void numbers_of_ours_are_kept_and_others_are_internal(void **state)
{
    (void)state;
    static const uint32_t ours[] = {64, 65, 66, 69, 70, 74, 75, 76, 78};
    static const uint32_t others[] = {
        0, 1, 63, 67, 68, 71, 77, 79, 128, INT32_MAX, UINT32_C(1) << 31, UINT32_MAX - 64, UINT32_MAX};
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++) assert_int_equal(status_received(ours[i]), ours[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) assert_int_equal(status_received(others[i]), 70);
}

static void a_failure_is_never_a_success_and_never_without_words(void **state)
{
    (void)state;
    struct error error;
    assert_int_equal(error_received(&error, 0, ""), -70);
    assert_int_equal(error.status, STATUS_INTERNAL);
    assert_string_equal(error.text, "failed and did not say why");
    assert_int_equal(error_received(&error, 65, "100 %s\n%n"), -65);
    assert_string_equal(error.text, "100 %s?%n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_of_ours_are_kept_and_others_are_internal),
        cmocka_unit_test(a_failure_is_never_a_success_and_never_without_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
