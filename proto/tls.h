/*
 * TLS between a socket and what speaks through it, both ends, without I/O: sealed bytes on the socket's side, plain
 * ones on the other. The caller moves them and keeps the time of a handshake.
 *
 * TLS 1.2 or later, never renegotiated, never resumed, with ALPN h2. What a peer can make a connection allocate is
 * capped: TLS_HANDSHAKE_MAX bytes come in before its handshake is done, certificates of TLS_CERTIFICATES_MAX bytes are
 * taken from it, and what is received is handed out before more is.
 */
#ifndef GACC_TLS_H
#define GACC_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "proto/error.h"

#define TLS_FINGERPRINT_BYTES 32 /* SHA-256 of a certificate in DER */
#define TLS_HANDSHAKE_MAX (64u << 10)
#define TLS_CERTIFICATES_MAX (32u << 10)
#define TLS_OUTPUT_MAX (256u << 10) /* sealed and not yet taken by tls_output */

struct tls_context; /* one end's certificate and whom it trusts, for any number of connections */
struct tls;         /* one connection */

struct tls_server_options {
    const char *certificate, *key; /* PEM files; certificate NULL: one is made that dies with the context */
    const char *names;             /* that it is made for: "DNS:gaccd,IP:10.0.0.1" */
    const char *clients; /* PEM file: clients must show a certificate that one of these signed; NULL: none is asked */
    bool http1;          /* http/1.1 is spoken, too */
};

struct tls_client_options {
    const uint8_t *fingerprint;    /* this certificate and no other; NULL: as `authorities` say */
    const char *authorities;       /* PEM file; NULL: those that the system trusts */
    const char *host;              /* without fingerprint: the name or address that the certificate has to be for */
    const char *certificate, *key; /* PEM files, for a server that asks; NULL: there is none */
};

/* 66 for a file that cannot be read, 65 for one that holds something else; the text names it. */
int tls_server(struct tls_context **out, const struct tls_server_options *options, struct error *error);
int tls_client(struct tls_context **out, const struct tls_client_options *options, struct error *error);
/* After its connections. NULL is allowed. */
void tls_context_close(struct tls_context *context);

/* Of the own certificate. */
void tls_context_fingerprint(const struct tls_context *context, uint8_t fingerprint[TLS_FINGERPRINT_BYTES]);
/* In DER; the number of bytes, 0 when they are more than `capacity`. */
size_t tls_context_certificate(const struct tls_context *context, uint8_t *bytes, size_t capacity);
/* In PEM, to be freed; NULL: no memory. */
char *tls_context_pem(const struct tls_context *context);
void tls_fingerprint(const uint8_t *der, size_t length, uint8_t fingerprint[TLS_FINGERPRINT_BYTES]);

int tls_open(struct tls **out, struct tls_context *context, struct error *error);
void tls_close(struct tls *tls); /* NULL is allowed */

/* Sealed bytes from the socket; then tls_read until it has no more, or, where plain ones are not wanted yet,
 * tls_handshake. Negative: no memory, or too many. */
int tls_input(struct tls *tls, const uint8_t *bytes, size_t length, struct error *error);
/* Goes on with it. 0: it waits for the peer, or is done (tls_is_established); 69 with the reason: there will be none.
 * What tls_output then has is to be sent even after a failure: it tells the peer why. */
int tls_handshake(struct tls *tls, struct error *error);
/* Plain bytes, behind the handshake, which it takes along: their number, 0 when there are none now, negative when there
 * will be none, as from tls_handshake. */
ssize_t tls_read(struct tls *tls, uint8_t *bytes, size_t capacity, struct error *error);
/* Plain bytes to be sealed, once the handshake is done: tls_output has them. */
int tls_write(struct tls *tls, const uint8_t *bytes, size_t length, struct error *error);
/* Bytes for the socket: their number, 0 when there are none. */
size_t tls_output(struct tls *tls, uint8_t *bytes, size_t capacity);
/* What is behind a failure, for who wants to say the next step. */
enum tls_fault {
    TLS_NO_FAULT,   /* or none of these */
    TLS_NOT_SPOKEN, /* by the peer */
    TLS_UNTRUSTED,  /* its certificate, or who signed it */
    TLS_OTHER_NAME, /* its certificate is for another host */
    TLS_REFUSED,    /* our certificate, or that there is none */
};
enum tls_fault tls_fault(const struct tls *tls);
/* The handshake is done, and the peer is who it has to be. (A server of TLS 1.3 may refuse a client's certificate
 * after the client thinks so.) */
bool tls_is_established(const struct tls *tls);

#endif
