/* What gRPC writes inside header values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/rpc/metadata.h"
#include "proto/rpc/rpc.h"

static void test_timeouts_are_read_in_every_unit_and_garbage_is_not(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int milliseconds;
    } cases[] = {{"1n", 1},   {"1000000n", 1},    {"1000001n", 2}, {"0m", 0},       {"250u", 1},
                 {"7m", 7},   {"2S", 2000},       {"3M", 180000},  {"1H", 3600000}, {"99999999H", INT32_MAX},
                 {"", -1},    {"5", -1},          {"m", -1},       {"5x", -1},      {"5mm", -1},
                 {"-5m", -1}, {"123456789m", -1}, {" 5m", -1},     {"5 m", -1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(timeout_parse(cases[i].text), cases[i].milliseconds);
    }
}

static void test_base64_round_trips_padded_or_not_and_refuses_the_rest(void **state)
{
    (void)state;
    static const struct {
        const char *text, *bytes;
    } cases[] = {{"", ""},      {"Zg==", "f"},   {"Zg", "f"},         {"Zm8=", "fo"},
                 {"Zm8", "fo"}, {"Zm9v", "foo"}, {"Zm9vYg==", "foob"}};
    uint8_t bytes[8];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int length = rpc_base64_decode(bytes, sizeof bytes, cases[i].text);
        assert_int_equal(length, strlen(cases[i].bytes));
        assert_memory_equal(bytes, cases[i].bytes, (size_t)length);
    }
    static const char *const malformed[] = {"Z", "Zm9vY", "Zm9-", "Zg=", "====", "Zm9vZm9vZm9v"};
    for (size_t i = 0; i < sizeof malformed / sizeof malformed[0]; i++) {
        assert_int_equal(rpc_base64_decode(bytes, sizeof bytes, malformed[i]), -1);
    }
}

static void test_status_texts_round_trip_through_percent_encoding(void **state)
{
    (void)state;
    static const struct {
        const char *text, *encoded;
    } cases[] = {
        {"plain text", "plain text"}, {"100 %", "100 %25"}, {"a\nb\x7f", "a%0Ab%7F"}, {"\xc3\xa9", "%C3%A9"}, {"", ""},
        {" a b ", "%20a b%20"},       {" ", "%20"}};
    char text[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        percent_encode(text, cases[i].text);
        assert_string_equal(text, cases[i].encoded);
        percent_decode(text, sizeof text, cases[i].encoded);
        assert_string_equal(text, cases[i].text);
    }
    percent_decode(text, sizeof text, "50% of %zz %4");
    assert_string_equal(text, "50% of %zz %4");
    percent_decode(text, 4, "%41%42%43%44");
    assert_string_equal(text, "ABC");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_timeouts_are_read_in_every_unit_and_garbage_is_not),
        cmocka_unit_test(test_base64_round_trips_padded_or_not_and_refuses_the_rest),
        cmocka_unit_test(test_status_texts_round_trip_through_percent_encoding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
