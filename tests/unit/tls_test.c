/* TLS: both ends of ours against each other, and our server against clients of OpenSSL that want what it refuses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include "proto/tls.h"
#include "tests/unit/certificates.h"

static struct certificate authority, stranger, server_certificate, client_certificate, late, foreign;

static int make_certificates(void **state)
{
    int status = scratch_open(state);
    authority = certificate_make("authority", NULL, NULL, 100);
    stranger = certificate_make("stranger", NULL, NULL, 100);
    server_certificate = certificate_make("server", &authority, "DNS:node7,IP:10.77.0.1", 100);
    client_certificate = certificate_make("client", &authority, NULL, 100);
    late = certificate_make("late", &authority, "DNS:node7", -1);
    foreign = certificate_make("foreign", &stranger, "DNS:node7", 100);
    return status;
}

static int drop_certificates(void **state)
{
    struct certificate *all[] = {&authority, &stranger, &server_certificate, &client_certificate, &late, &foreign};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) certificate_free(all[i]);
    return scratch_close(state);
}

/* ---- two ends of ours ---- */

struct end {
    struct tls *tls;
    uint8_t read[1 << 17];
    size_t length;
    int status;
    struct error error;
};

/* What the one has for the socket, in pieces of `piece` bytes, into the other. Whether there was anything. */
static bool carry(struct end *from, struct end *to, size_t piece)
{
    uint8_t sealed[4096];
    bool any = false;
    for (size_t length; (length = tls_output(from->tls, sealed, piece < sizeof sealed ? piece : sizeof sealed)) > 0;) {
        any = true;
        if (to->status) continue;
        to->status = tls_input(to->tls, sealed, length, &to->error);
        for (ssize_t got; !to->status;) {
            got = tls_read(to->tls, to->read + to->length, sizeof to->read - to->length, &to->error);
            if (got < 0) to->status = (int)got;
            if (got <= 0) break;
            to->length += (size_t)got;
        }
    }
    return any;
}

struct pair {
    struct tls_context *server_context, *client_context;
    struct end server, client;
};

/* Both ways, until neither has anything to say. */
static void converse(struct pair *pair, size_t piece)
{
    bool asked, answered;
    do {
        asked = carry(&pair->client, &pair->server, piece);
        answered = carry(&pair->server, &pair->client, piece);
    } while (asked || answered);
}

static void meet(struct pair *pair, const struct tls_server_options *server, const struct tls_client_options *client,
                 size_t piece)
{
    memset(pair, 0, sizeof *pair);
    struct error error;
    assert_int_equal(tls_server(&pair->server_context, server, &error), 0);
    struct tls_client_options options = *client;
    uint8_t fingerprint[TLS_FINGERPRINT_BYTES];
    tls_context_fingerprint(pair->server_context, fingerprint);
    if (!options.fingerprint && !options.authorities) options.fingerprint = fingerprint;
    assert_int_equal(tls_client(&pair->client_context, &options, &error), 0);
    assert_int_equal(tls_open(&pair->server.tls, pair->server_context, &error), 0);
    assert_int_equal(tls_open(&pair->client.tls, pair->client_context, &error), 0);
    converse(pair, piece);
}

static void part(struct pair *pair)
{
    tls_close(pair->server.tls);
    tls_close(pair->client.tls);
    tls_context_close(pair->server_context);
    tls_context_close(pair->client_context);
}

static enum tls_fault fault; /* of the last two that met, by the client */

/* They meet and go; the reason of the server, or else of the client, or NULL when both are content. */
static const char *verdict(const struct tls_server_options *server, const struct tls_client_options *client)
{
    static char text[1024];
    static struct pair pair;
    meet(&pair, server, client, 4096);
    const bool content = tls_is_established(pair.server.tls) && !pair.server.status &&
                         tls_is_established(pair.client.tls) && !pair.client.status;
    const struct error *why = pair.server.status && !strstr(pair.server.error.text, "alert") ? &pair.server.error
                              : pair.client.status                                           ? &pair.client.error
                                                                                             : &pair.server.error;
    snprintf(text, sizeof text, "%s", why->text);
    fault = tls_fault(pair.client.tls);
    part(&pair);
    return content ? NULL : text;
}

static void accepted(const struct tls_server_options *server, const struct tls_client_options *client)
{
    const char *why = verdict(server, client);
    if (why) fail_msg("refused: %s", why);
}

static void refused(const struct tls_server_options *server, const struct tls_client_options *client, const char *word,
                    enum tls_fault expected)
{
    const char *why = verdict(server, client);
    if (!why) fail_msg("accepted, though %s was expected", word);
    if (!strstr(why, word)) fail_msg("refused by \"%s\", not for %s", why, word);
    assert_int_equal(fault, expected);
}

static const struct tls_server_options ephemeral = {.names = "DNS:gaccd"};
static const struct tls_client_options pinning = {0}; /* the server's own fingerprint */

static void bytes_travel_both_ways_in_pieces_of_any_size(void **unused)
{
    (void)unused;
    static struct pair pair;
    static uint8_t sent[100000];
    for (size_t i = 0; i < sizeof sent; i++) sent[i] = (uint8_t)(i * 7 + i / 251);
    const size_t pieces[] = {1, 2, 3, 100, 4096};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        meet(&pair, &ephemeral, &pinning, pieces[i]);
        assert_true(tls_is_established(pair.client.tls) && tls_is_established(pair.server.tls));
        struct error error;
        assert_int_equal(tls_write(pair.client.tls, sent, sizeof sent, &error), 0);
        assert_int_equal(tls_write(pair.server.tls, sent, 1000, &error), 0);
        converse(&pair, pieces[i]);
        assert_int_equal(pair.server.length, sizeof sent);
        assert_memory_equal(pair.server.read, sent, sizeof sent);
        assert_int_equal(pair.client.length, 1000);
        assert_memory_equal(pair.client.read, sent, 1000);
        part(&pair);
    }
}

static void only_the_pinned_certificate_will_do(void **unused)
{
    (void)unused;
    accepted(&ephemeral, &pinning);
    uint8_t other[TLS_FINGERPRINT_BYTES] = {1};
    refused(&ephemeral, &(struct tls_client_options){.fingerprint = other}, "certificate", TLS_UNTRUSTED);
    /* Another one for the same names is another one. */
    struct tls_context *context;
    struct error error;
    assert_int_equal(tls_server(&context, &ephemeral, &error), 0);
    tls_context_fingerprint(context, other);
    tls_context_close(context);
    refused(&ephemeral, &(struct tls_client_options){.fingerprint = other}, "certificate", TLS_UNTRUSTED);
}

static void the_certificate_tells_its_fingerprint(void **unused)
{
    (void)unused;
    struct tls_context *context;
    struct error error;
    uint8_t der[2048], one[TLS_FINGERPRINT_BYTES], other[TLS_FINGERPRINT_BYTES];
    assert_int_equal(tls_server(&context, &ephemeral, &error), 0);
    const size_t length = tls_context_certificate(context, der, sizeof der);
    assert_in_range(length, 200, 512); /* rank 0 has room for 512 */
    assert_int_equal(tls_context_certificate(context, der, length - 1), 0);
    tls_fingerprint(der, length, one);
    tls_context_fingerprint(context, other);
    assert_memory_equal(one, other, sizeof one);
    char *pem = tls_context_pem(context);
    assert_int_equal(strncmp(pem, "-----BEGIN CERTIFICATE-----\n", 28), 0);
    free(pem);
    tls_context_close(context);
}

static void an_authoritys_server_is_taken_by_its_name_or_address(void **unused)
{
    (void)unused;
    const struct tls_server_options server = {.certificate = server_certificate.pem,
                                              .key = server_certificate.key_file};
    const struct tls_server_options is_late = {.certificate = late.pem, .key = late.key_file};
    const struct tls_server_options is_foreign = {.certificate = foreign.pem, .key = foreign.key_file};
    struct tls_client_options client = {.authorities = authority.pem, .host = "node7"};
    accepted(&server, &client);
    refused(&is_late, &client, "expired", TLS_UNTRUSTED);
    refused(&is_foreign, &client, "certificate", TLS_UNTRUSTED);
    refused(&ephemeral, &client, "certificate", TLS_UNTRUSTED);
    client.host = "10.77.0.1";
    accepted(&server, &client);
    client.host = "10.77.0.2";
    refused(&server, &client, "IP address mismatch", TLS_OTHER_NAME);
    client.host = "node8";
    refused(&server, &client, "hostname mismatch", TLS_OTHER_NAME);
}

static void who_wants_clients_with_a_certificate_gets_no_others(void **unused)
{
    (void)unused;
    const struct tls_server_options server = {.names = "DNS:gaccd", .clients = authority.pem};
    accepted(&server,
             &(struct tls_client_options){.certificate = client_certificate.pem, .key = client_certificate.key_file});
    refused(&server, &pinning, "peer did not return a certificate", TLS_REFUSED);
    refused(&server, &(struct tls_client_options){.certificate = late.pem, .key = late.key_file}, "expired",
            TLS_REFUSED);
    refused(&server, &(struct tls_client_options){.certificate = foreign.pem, .key = foreign.key_file},
            "unable to get local issuer certificate", TLS_REFUSED);
    refused(&server, &(struct tls_client_options){.certificate = stranger.pem, .key = stranger.key_file},
            "self-signed certificate", TLS_REFUSED);
}

static void files_that_hold_something_else_are_named(void **unused)
{
    (void)unused;
    struct tls_context *context;
    struct error error;
    char *noise = scratch_file("noise.pem", "no certificate\n", 15), missing[160];
    snprintf(missing, sizeof missing, "%s/missing.pem", scratch);
    const struct {
        const char *certificate, *key, *clients, *named;
        int status;
    } bad[] = {
        {missing, server_certificate.key_file, NULL, missing, 66},
        {server_certificate.pem, missing, NULL, missing, 66},
        {server_certificate.pem, server_certificate.key_file, missing, missing, 66},
        {noise, server_certificate.key_file, NULL, noise, 65},
        {server_certificate.pem, noise, NULL, noise, 65},
        {server_certificate.pem, client_certificate.key_file, NULL, client_certificate.key_file, 65},
        {server_certificate.pem, server_certificate.key_file, noise, noise, 65},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct tls_server_options options = {bad[i].certificate, bad[i].key, NULL, bad[i].clients, false};
        assert_int_equal(tls_server(&context, &options, &error), -bad[i].status);
        assert_int_equal(strncmp(error.text, bad[i].named, strlen(bad[i].named)), 0);
    }
    const struct tls_client_options options = {.authorities = missing, .host = "x"};
    assert_int_equal(tls_client(&context, &options, &error), -66);
    free(noise);
}

/* ---- a client of OpenSSL ---- */

struct raw {
    SSL_CTX *context;
    SSL *ssl;
    BIO *in, *out;
    struct tls_context *server_context;
    struct end server;
};

static void raw_open(struct raw *raw, const struct tls_server_options *options)
{
    struct error error;
    memset(raw, 0, sizeof *raw);
    assert_int_equal(tls_server(&raw->server_context, options, &error), 0);
    assert_int_equal(tls_open(&raw->server.tls, raw->server_context, &error), 0);
    raw->context = SSL_CTX_new(TLS_client_method());
    SSL_CTX_set_security_level(raw->context, 0);
    SSL_CTX_set_min_proto_version(raw->context, 0);
    raw->ssl = SSL_new(raw->context);
    raw->in = BIO_new(BIO_s_mem());
    raw->out = BIO_new(BIO_s_mem());
    SSL_set_bio(raw->ssl, raw->in, raw->out);
    SSL_set_connect_state(raw->ssl);
}

static void raw_close(struct raw *raw)
{
    SSL_free(raw->ssl);
    SSL_CTX_free(raw->context);
    tls_close(raw->server.tls);
    tls_context_close(raw->server_context);
}

static void raw_talk(struct raw *raw)
{
    uint8_t bytes[4096];
    for (int i = 0; i < 20; i++) {
        SSL_do_handshake(raw->ssl);
        ERR_clear_error();
        for (int length; (length = BIO_read(raw->out, bytes, sizeof bytes)) > 0 && !raw->server.status;) {
            raw->server.status = tls_input(raw->server.tls, bytes, (size_t)length, &raw->server.error);
            while (!raw->server.status) {
                ssize_t got = tls_read(raw->server.tls, raw->server.read, sizeof raw->server.read, &raw->server.error);
                if (got < 0) raw->server.status = (int)got;
                if (got <= 0) break;
            }
        }
        for (size_t length; (length = tls_output(raw->server.tls, bytes, sizeof bytes)) > 0;)
            BIO_write(raw->in, bytes, (int)length);
    }
}

static void versions_before_1_2_are_refused(void **unused)
{
    (void)unused;
    const int versions[] = {TLS1_VERSION, TLS1_1_VERSION, TLS1_2_VERSION, TLS1_3_VERSION};
    for (int i = 0; i < 4; i++) {
        struct raw raw;
        raw_open(&raw, &ephemeral);
        assert_int_equal(SSL_set_min_proto_version(raw.ssl, versions[i]), 1);
        assert_int_equal(SSL_set_max_proto_version(raw.ssl, versions[i]), 1);
        raw_talk(&raw);
        assert_int_equal(tls_is_established(raw.server.tls), i >= 2);
        if (i < 2) assert_non_null(strstr(raw.server.error.text, "unsupported protocol"));
        raw_close(&raw);
    }
    /* SSL 3.0, which this OpenSSL does not speak itself: a hello of version 3.0 and nothing later. */
    static const uint8_t hello[] = {22, 3, 0, 0, 45, 1, 0, 0, 41, 3, 0, [43] = 0, 0, 2, 0x00, 0x2f, 1, 0};
    struct raw raw;
    raw_open(&raw, &ephemeral);
    assert_int_equal(tls_input(raw.server.tls, hello, sizeof hello, &raw.server.error), 0);
    assert_true(tls_read(raw.server.tls, raw.server.read, 1, &raw.server.error) < 0);
    raw_close(&raw);
}

static void the_protocol_is_h2_or_http_1_1_where_it_is_served(void **unused)
{
    (void)unused;
    const struct tls_server_options both = {.names = "DNS:gaccd", .http1 = true};
    const struct {
        const struct tls_server_options *server;
        const char *offered, *chosen; /* NULL: refused */
    } cases[] = {
        {&both, "\x02h2", "h2"},
        {&both, "\x08http/1.1", "http/1.1"},
        {&both, "\x02h2\x08http/1.1", "http/1.1"}, /* not a client of gRPC */
        {&both, "\x06spdy/3", NULL},
        {&both, "", ""},
        {&ephemeral, "\x02h2", "h2"},
        {&ephemeral, "\x08http/1.1", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct raw raw;
        raw_open(&raw, cases[i].server);
        const char *offered = cases[i].offered;
        if (*offered) SSL_set_alpn_protos(raw.ssl, (const uint8_t *)offered, (unsigned)strlen(offered));
        raw_talk(&raw);
        assert_int_equal(tls_is_established(raw.server.tls), cases[i].chosen != NULL);
        const uint8_t *chosen;
        unsigned length;
        SSL_get0_alpn_selected(raw.ssl, &chosen, &length);
        if (cases[i].chosen) {
            assert_int_equal(length, strlen(cases[i].chosen));
            assert_memory_equal(chosen, cases[i].chosen, length);
        }
        raw_close(&raw);
    }
}

static void nothing_is_renegotiated(void **unused)
{
    (void)unused;
    struct raw raw;
    raw_open(&raw, &ephemeral);
    SSL_set_max_proto_version(raw.ssl, TLS1_2_VERSION);
    raw_talk(&raw);
    assert_true(tls_is_established(raw.server.tls));
    SSL_renegotiate(raw.ssl);
    raw_talk(&raw);
    assert_true(SSL_renegotiate_pending(raw.ssl));
    raw_close(&raw);
}

static void a_session_is_not_resumed(void **unused)
{
    (void)unused;
    struct raw first, second;
    raw_open(&first, &ephemeral);
    raw_talk(&first);
    SSL_SESSION *session = SSL_get1_session(first.ssl);
    assert_false(SSL_SESSION_is_resumable(session));
    raw_open(&second, &ephemeral);
    SSL_set_session(second.ssl, session);
    raw_talk(&second);
    assert_true(tls_is_established(second.server.tls));
    assert_false(SSL_session_reused(second.ssl));
    SSL_SESSION_free(session);
    raw_close(&first);
    raw_close(&second);
}

/* Each asks for an answer, which nobody fetches. */
static void key_updates_fill_no_memory(void **unused)
{
    (void)unused;
    struct raw raw;
    uint8_t bytes[4096];
    raw_open(&raw, &ephemeral);
    raw_talk(&raw);
    assert_true(tls_is_established(raw.server.tls));
    size_t updates = 0;
    for (; updates < 100000 && !raw.server.status; updates++) {
        assert_int_equal(SSL_key_update(raw.ssl, SSL_KEY_UPDATE_REQUESTED), 1);
        SSL_do_handshake(raw.ssl);
        for (int length; (length = BIO_read(raw.out, bytes, sizeof bytes)) > 0 && !raw.server.status;) {
            raw.server.status = tls_input(raw.server.tls, bytes, (size_t)length, &raw.server.error);
            if (raw.server.status) break;
            const ssize_t got = tls_read(raw.server.tls, raw.server.read, 1, &raw.server.error);
            if (got < 0) raw.server.status = (int)got;
        }
    }
    assert_int_equal(raw.server.status, -69);
    size_t pending = 0;
    for (size_t length; (length = tls_output(raw.server.tls, bytes, sizeof bytes)) > 0;) pending += length;
    assert_in_range(pending, TLS_OUTPUT_MAX / 2, TLS_OUTPUT_MAX + 4096);
    raw_close(&raw);
}

static void what_is_no_tls_is_told_so(void **unused)
{
    (void)unused;
    static const char *const noises[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
                                         "\x16\x03\x01\xff\xff\x01"};
    for (size_t i = 0; i < sizeof noises / sizeof *noises; i++) {
        struct raw raw;
        raw_open(&raw, &ephemeral);
        struct end *server = &raw.server;
        assert_int_equal(tls_input(server->tls, (const uint8_t *)noises[i], strlen(noises[i]), &server->error), 0);
        assert_int_equal(tls_read(server->tls, server->read, 1, &server->error), -69);
        assert_int_equal(strncmp(server->error.text, "TLS: ", 5), 0);
        assert_int_equal(tls_fault(server->tls), i < 2 ? TLS_NOT_SPOKEN : TLS_NO_FAULT);
        raw_close(&raw);
    }
}

/* A record that never ends, and then one behind the other that never make a hello. */
static void a_handshake_has_a_size(void **unused)
{
    (void)unused;
    struct raw raw;
    raw_open(&raw, &ephemeral);
    uint8_t record[5 + 1024] = {22, 3, 1, 4, 0, 1, 0, 0xff, 0xff};
    size_t sent = 0;
    while (!raw.server.status && sent < 1 << 24) {
        raw.server.status = tls_input(raw.server.tls, record, sizeof record, &raw.server.error);
        if (raw.server.status) break;
        const ssize_t got = tls_read(raw.server.tls, raw.server.read, 1, &raw.server.error);
        if (got < 0) raw.server.status = (int)got;
        sent += sizeof record;
    }
    assert_int_equal(raw.server.status, -69);
    assert_in_range(sent, 0, TLS_HANDSHAKE_MAX);
    raw_close(&raw);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_travel_both_ways_in_pieces_of_any_size),
        cmocka_unit_test(only_the_pinned_certificate_will_do),
        cmocka_unit_test(the_certificate_tells_its_fingerprint),
        cmocka_unit_test(an_authoritys_server_is_taken_by_its_name_or_address),
        cmocka_unit_test(who_wants_clients_with_a_certificate_gets_no_others),
        cmocka_unit_test(files_that_hold_something_else_are_named),
        cmocka_unit_test(versions_before_1_2_are_refused),
        cmocka_unit_test(the_protocol_is_h2_or_http_1_1_where_it_is_served),
        cmocka_unit_test(nothing_is_renegotiated),
        cmocka_unit_test(a_session_is_not_resumed),
        cmocka_unit_test(key_updates_fill_no_memory),
        cmocka_unit_test(what_is_no_tls_is_told_so),
        cmocka_unit_test(a_handshake_has_a_size),
    };
    return cmocka_run_group_tests(tests, make_certificates, drop_certificates);
}
