/* A blocking socket to an endpoint as connection.json and --connect have it. */
#ifndef GACC_CTL_DIAL_H
#define GACC_CTL_DIAL_H

/* `endpoint`: unix:PATH, HOST:PORT, [HOST]:PORT, or either behind tcp://. Each address of a host has `seconds` for
 * connecting; so has later each send(2). −1 with errno, EHOSTUNREACH also for a name that has no address. */
int dial(const char *endpoint, int seconds);

#endif
