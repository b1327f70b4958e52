/* Messages off the wire: what they may take in memory is limited by what they measure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/gacc/v1/control.pb-c.h"
#include "proto/message.h"

enum { BEYOND = 1 << 20 };

static Gacc__V1__SetParametersRequest *unpack(const uint8_t *bytes, size_t length)
{
    return message_unpack(&gacc__v1__set_parameters_request__descriptor, length, bytes, BEYOND);
}

static void a_request_is_read(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {10, 8, 10, 2, 'l', 'r', 18, 2, '.', '5', 10, 0};
    Gacc__V1__SetParametersRequest *request = unpack(bytes, sizeof bytes);
    assert_non_null(request);
    assert_int_equal(request->n_settings, 2);
    assert_string_equal(request->settings[0]->path, "lr");
    assert_string_equal(request->settings[0]->value, ".5");
    assert_string_equal(request->settings[1]->path, "");
    gacc__v1__set_parameters_request__free_unpacked(request, NULL);
}

static void a_string_with_a_nul_in_it_is_none(void **state)
{
    (void)state;
    static const uint8_t cut[] = {10, 10, 10, 2, 'l', 'r', 18, 4, '.', '5', 0, 'x'};
    static const uint8_t ended[] = {10, 9, 10, 3, 'l', 'r', 0, 18, 2, '.', '5'};
    assert_null(unpack(cut, sizeof cut));
    assert_null(unpack(ended, sizeof ended));
    static const uint8_t unknown[] = {10, 8, 10, 2, 'l', 'r', 18, 2, '.', '5', 122, 1, 0, 120, 0, 125, 0, 0, 0, 0};
    Gacc__V1__SetParametersRequest *request = unpack(unknown, sizeof unknown); /* of fields that are none of its own */
    assert_non_null(request);
    gacc__v1__set_parameters_request__free_unpacked(request, NULL);
}

static void two_bytes_a_setting_are_soon_too_many(void **state)
{
    (void)state;
    static const size_t counts[] = {1000, 100000, 2 << 20};
    uint8_t *bytes = malloc(4 << 20);
    assert_non_null(bytes);
    for (size_t i = 0; i < 2 << 20; i++) bytes[2 * i] = 10, bytes[2 * i + 1] = 0;
    for (size_t i = 0; i < 3; i++) {
        Gacc__V1__SetParametersRequest *request = unpack(bytes, 2 * counts[i]);
        assert_int_equal(request != NULL, i == 0);
        if (request) gacc__v1__set_parameters_request__free_unpacked(request, NULL);
    }
    free(bytes);
}

static void one_long_field_is_as_long_as_it_is(void **state)
{
    (void)state;
    const size_t length = 4 << 20, head = 6; /* field 15, bytes, and five bytes of its length */
    uint8_t *bytes = calloc(1, length);
    assert_non_null(bytes);
    bytes[0] = 15 << 3 | 2;
    for (size_t i = 0; i < 5; i++) bytes[1 + i] = (uint8_t)((length - head) >> 7 * i & 127) | (i < 4 ? 128 : 0);
    Gacc__V1__SetParametersRequest *request = unpack(bytes, length);
    assert_non_null(request);
    gacc__v1__set_parameters_request__free_unpacked(request, NULL);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_request_is_read),
        cmocka_unit_test(a_string_with_a_nul_in_it_is_none),
        cmocka_unit_test(two_bytes_a_setting_are_soon_too_many),
        cmocka_unit_test(one_long_field_is_as_long_as_it_is),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
