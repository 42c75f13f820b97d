/* Sockets for shiva.h, on POSIX systems. */
#ifndef SHIVA_POSIX_H
#define SHIVA_POSIX_H

#include "shiva.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * shiva_connect connects to a server over TCP, "127.0.0.1:6174", "cell.local:6174" or "[::1]:6174",
 * and returns the socket, which the caller must close, or -1 with errno set: ETIMEDOUT once this
 * many seconds have passed; 0: the system's limits. A name's addresses share the seconds, each with
 * an equal part of what is left: a good one is reached after one that does not answer. Looking a
 * name up counts, but ends by the resolver's own limits, since POSIX cannot interrupt it; a numeric
 * address is never looked up.
 *
 * The socket does not block, and sends at once. With TCP keepalive it notices that the server's
 * machine is gone, within two minutes where the system lets programs choose that.
 */
int shiva_connect(const char *address, unsigned seconds);

/* A connected socket, and how long its server may keep the client waiting. */
struct shiva_socket {
    int fd;
    unsigned seconds;
    int64_t sending, receiving; /* nanoseconds left for the current request, and for the answer */
};

/*
 * shiva_socket returns a transport for a connected socket, which it sets not to block and never
 * closes. Sending a request waits for the server for this many seconds in all, and so does
 * receiving an answer, from shiva_answer on; each 16 KiB that move give a second back. 0: no limit.
 * Time that the caller spends between calls does not count. The transport uses k.
 */
struct shiva_transport shiva_socket(struct shiva_socket *k, int socket, unsigned seconds);

#ifdef __cplusplus
}
#endif

#endif
