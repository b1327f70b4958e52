/* Who may call what. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/coordinator/guard.h"

static struct guard guard;
static char control[128], reading[128], secret[64];

static int make_guard(void **state)
{
    (void)state;
    struct error error;
    if (guard_open(&guard, &error)) return -1;
    snprintf(control, sizeof control, "Bearer %s", guard.control_token);
    snprintf(reading, sizeof reading, "bearer %s", guard.read_token);
    rpc_base64_encode(secret, guard.secret, SECRET_BYTES);
    return 0;
}

static enum rpc_code judge(enum trust trust, enum role wanted, const char *authorization, const char *shown)
{
    const struct judgment judgment = guard_judge(&guard, trust, wanted, authorization, shown);
    assert_true(judgment.code == RPC_OK || (judgment.said && judgment.logged));
    return judgment.code;
}

static void every_address_has_its_callers(void **unused)
{
    (void)unused;
    const enum rpc_code no = RPC_UNAUTHENTICATED, never = RPC_UNIMPLEMENTED;
    const struct {
        enum trust trust;
        enum role wanted;
        enum rpc_code bare, by_control, by_reading, by_secret;
    } rows[] = {
        {TRUST_OWNER, ROLE_READ, RPC_OK, RPC_OK, RPC_OK, RPC_OK},
        {TRUST_OWNER, ROLE_CONTROL, RPC_OK, RPC_OK, RPC_OK, RPC_OK},
        {TRUST_OWNER, ROLE_WORKER, no, no, no, RPC_OK},
        {TRUST_OPERATOR, ROLE_READ, no, RPC_OK, RPC_OK, no},
        {TRUST_OPERATOR, ROLE_CONTROL, no, RPC_OK, RPC_PERMISSION_DENIED, no},
        {TRUST_OPERATOR, ROLE_WORKER, never, never, never, never},
        {TRUST_WORKER, ROLE_READ, never, never, never, never},
        {TRUST_WORKER, ROLE_CONTROL, never, never, never, never},
        {TRUST_WORKER, ROLE_WORKER, no, no, no, RPC_OK},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(judge(rows[i].trust, rows[i].wanted, NULL, NULL), rows[i].bare);
        assert_int_equal(judge(rows[i].trust, rows[i].wanted, control, NULL), rows[i].by_control);
        assert_int_equal(judge(rows[i].trust, rows[i].wanted, reading, NULL), rows[i].by_reading);
        assert_int_equal(judge(rows[i].trust, rows[i].wanted, NULL, secret), rows[i].by_secret);
    }
}

/* One digit more, less or other, anywhere. */
static void nearly_the_token_is_none(void **unused)
{
    (void)unused;
    char text[160];
    for (size_t i = 0; i < TOKEN_DIGITS; i++) {
        snprintf(text, sizeof text, "%s", control);
        char *digit = text + strlen("Bearer ") + i;
        *digit = *digit == '0' ? '1' : '0';
        assert_int_equal(judge(TRUST_OPERATOR, ROLE_READ, text, NULL), RPC_UNAUTHENTICATED);
    }
    const char *const token = guard.control_token, *const before[] = {"", "Bearer  ", "Basic ", "Bearer"};
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        snprintf(text, sizeof text, "%s%s", before[i], token);
        assert_int_equal(judge(TRUST_OPERATOR, ROLE_READ, text, NULL), RPC_UNAUTHENTICATED);
    }
    snprintf(text, sizeof text, "%s0", control);
    assert_int_equal(judge(TRUST_OPERATOR, ROLE_READ, text, NULL), RPC_UNAUTHENTICATED);
    snprintf(text, sizeof text, "Bearer %.63s", token);
    assert_int_equal(judge(TRUST_OPERATOR, ROLE_READ, text, NULL), RPC_UNAUTHENTICATED);
    assert_int_equal(judge(TRUST_OPERATOR, ROLE_READ, "Bearer ", NULL), RPC_UNAUTHENTICATED);
}

static void nearly_the_secret_is_none(void **unused)
{
    (void)unused;
    uint8_t other[SECRET_BYTES + 1];
    char text[64];
    for (size_t i = 0; i < SECRET_BYTES; i++) {
        memcpy(other, guard.secret, SECRET_BYTES);
        other[i] ^= 1;
        rpc_base64_encode(text, other, SECRET_BYTES);
        assert_int_equal(judge(TRUST_WORKER, ROLE_WORKER, NULL, text), RPC_UNAUTHENTICATED);
    }
    memcpy(other, guard.secret, SECRET_BYTES);
    other[SECRET_BYTES] = 0;
    rpc_base64_encode(text, other, SECRET_BYTES + 1);
    assert_int_equal(judge(TRUST_WORKER, ROLE_WORKER, NULL, text), RPC_UNAUTHENTICATED);
    rpc_base64_encode(text, other, SECRET_BYTES - 1);
    assert_int_equal(judge(TRUST_WORKER, ROLE_WORKER, NULL, text), RPC_UNAUTHENTICATED);
    snprintf(text, sizeof text, "%.43s", secret); /* gRPC may leave the padding out */
    assert_int_equal(judge(TRUST_WORKER, ROLE_WORKER, NULL, text), RPC_OK);
}

static void no_two_secrets_are_alike(void **unused)
{
    (void)unused;
    struct guard other;
    struct error error;
    assert_int_equal(guard_open(&other, &error), 0);
    const char *const tokens[] = {guard.control_token, guard.read_token, other.control_token, other.read_token};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(strspn(tokens[i], "0123456789abcdef"), 64);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(tokens[i], tokens[k]);
    }
    assert_memory_not_equal(guard.secret, other.secret, SECRET_BYTES);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_address_has_its_callers),
        cmocka_unit_test(nearly_the_token_is_none),
        cmocka_unit_test(nearly_the_secret_is_none),
        cmocka_unit_test(no_two_secrets_are_alike),
    };
    return cmocka_run_group_tests(tests, make_guard, NULL);
}
