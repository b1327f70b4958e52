/* Addresses over TCP, as people write them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "proto/endpoint.h"

static void an_endpoint_is_a_host_and_a_port(void **unused)
{
    (void)unused;
    static const struct {
        const char *text, *host, *port; /* host NULL: it is none */
    } cases[] = {
        {"tcp://127.0.0.1:7000", "127.0.0.1", "7000"},
        {"node7:65535", "node7", "65535"},
        {"node7:http", NULL, NULL},
        {"node7:65536", NULL, NULL},     /* not 0 */
        {"127.0.0.1:99999", NULL, NULL}, /* not 34463 */
        {"tcp://[::1]:4294967297", NULL, NULL},
        {"node7:-1", NULL, NULL},
        {"node7:+1", NULL, NULL},
        {"node7: 1", NULL, NULL},
        {"node7:000001", NULL, NULL},
        {"[::1]:0", "::1", "0"},
        {"tcp://[fe80::1%eth0]:1", "fe80::1%eth0", "1"},
        {"unix:/tmp/x:1", NULL, NULL},
        {"host", NULL, NULL},
        {"host:", NULL, NULL},
        {":80", NULL, NULL},
        {"tcp://:80", NULL, NULL},
        {"[]:80", NULL, NULL},
        {"host:1234567890123456", NULL, NULL},
        {"", NULL, NULL},
    };
    struct endpoint endpoint;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(endpoint_parse(&endpoint, cases[i].text), cases[i].host != NULL);
        if (!cases[i].host) continue;
        assert_string_equal(endpoint.host, cases[i].host);
        assert_string_equal(endpoint.port, cases[i].port);
    }
}

/* Whatever it is not sure of is another host's. */
static void loopback_is_what_cannot_be_another_host(void **unused)
{
    (void)unused;
    static const struct {
        const char *text;
        bool is_loopback;
    } cases[] = {
        {"127.0.0.1:1", true},        {"127.255.0.9:1", true}, {"[::1]:1", true},
        {"localhost:1", true},        {"0.0.0.0:1", false},    {"[::]:1", false},
        {"126.0.0.1:1", false},       {"128.0.0.1:1", false},  {"[::2]:1", false},
        {"localhost.:1", false},      {"127.1:1", false},      {"127.0.0.1.example.org:1", false},
        {"[::ffff:7f00:1]:1", false},
    };
    struct endpoint endpoint;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(endpoint_parse(&endpoint, cases[i].text));
        assert_int_equal(endpoint_is_loopback(&endpoint), cases[i].is_loopback);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_endpoint_is_a_host_and_a_port),
        cmocka_unit_test(loopback_is_what_cannot_be_another_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
