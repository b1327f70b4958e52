#include "daemon/coordinator/guard.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdbool.h>
#include <string.h>
#include <strings.h>

#include "daemon/hex.h"

int guard_open(struct guard *guard, struct error *error)
{
    uint8_t control[SECRET_BYTES], read[SECRET_BYTES];
    const bool made = RAND_bytes(guard->secret, SECRET_BYTES) == 1 && RAND_bytes(control, sizeof control) == 1 &&
                      RAND_bytes(read, sizeof read) == 1;
    if (!made) return error_set(error, STATUS_INTERNAL, "no random bytes to be had");
    hex_write(control, sizeof control, guard->control_token);
    hex_write(read, sizeof read, guard->read_token);
    OPENSSL_cleanse(control, sizeof control);
    OPENSSL_cleanse(read, sizeof read);
    return 0;
}

/* In a time that depends on nothing but the length of what is shown. */
static bool is_token(const char *shown, const char *token)
{
    return strlen(shown) == TOKEN_DIGITS && !CRYPTO_memcmp(shown, token, TOKEN_DIGITS);
}

static bool has_secret(const struct guard *guard, const char *text)
{
    uint8_t bytes[SECRET_BYTES];
    return text && rpc_base64_decode(bytes, sizeof bytes, text) == SECRET_BYTES &&
           !CRYPTO_memcmp(bytes, guard->secret, SECRET_BYTES);
}

static struct judgment judge_worker(const struct guard *guard, enum trust trust, const char *secret)
{
    if (trust == TRUST_OPERATOR)
        return (struct judgment){RPC_UNIMPLEMENTED, "this address serves operators only", "a rank's call", NULL};
    if (has_secret(guard, secret)) return (struct judgment){.code = RPC_OK};
    return (struct judgment){RPC_UNAUTHENTICATED, "the job's secret is required",
                             secret ? "a secret that is not this job's" : "no secret", NULL};
}

static struct judgment judge_operator(const struct guard *guard, enum role wanted, const char *authorization)
{
    static const char scheme[] = "Bearer ";
    const size_t length = sizeof scheme - 1;
    const char *shown = authorization && !strncasecmp(authorization, scheme, length) ? authorization + length : "";
    const bool controls = is_token(shown, guard->control_token), reads = is_token(shown, guard->read_token);
    if (controls) return (struct judgment){.code = RPC_OK, .role = "control"};
    if (reads && wanted == ROLE_READ) return (struct judgment){.code = RPC_OK, .role = "read"};
    if (reads)
        return (struct judgment){RPC_PERMISSION_DENIED, "this token is for reading", "the token for reading", "read"};
    return (struct judgment){RPC_UNAUTHENTICATED, "a valid token is required",
                             authorization ? "a token that is none of this job's" : "no token", NULL};
}

struct judgment guard_judge(const struct guard *guard, enum trust trust, enum role wanted, const char *authorization,
                            const char *secret)
{
    if (wanted == ROLE_WORKER) return judge_worker(guard, trust, secret);
    if (trust == TRUST_WORKER)
        return (struct judgment){RPC_UNIMPLEMENTED, "this address serves workers only", "an operator's call", NULL};
    if (trust == TRUST_OWNER) return (struct judgment){.code = RPC_OK, .role = "control"};
    return judge_operator(guard, wanted, authorization);
}
