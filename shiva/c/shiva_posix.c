#define _POSIX_C_SOURCE 200809L

#include "shiva_posix.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static const int64_t second = 1000000000, millisecond = 1000000;

/* No limit is longer than any machine runs; it can still be added to. */
static const int64_t forever = INT64_MAX / 2;

static int64_t limit_of(unsigned seconds) { return seconds > 0 ? seconds * second : forever; }

static int64_t now(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * second + t.tv_nsec;
}

/* await waits until the socket is ready, and takes the time from what is left; -1: nothing is. */
static int await(int fd, short ready, int64_t *left)
{
    struct pollfd p = {0};
    int got = 0;

    p.fd = fd;
    p.events = ready;
    while (got == 0 && *left > 0) {
        int64_t began = now(), wait = (*left + millisecond - 1) / millisecond;

        got = poll(&p, 1, wait < INT_MAX ? (int)wait : INT_MAX);
        *left -= now() - began;
        if (got < 0 && errno != EINTR)
            return -1;
        if (got < 0)
            got = 0;
    }
    if (got > 0)
        return 0;
    errno = ETIMEDOUT;
    return -1;
}

static int unblock(int fd)
{
    int flags = fcntl(fd, F_GETFL);

    return flags < 0 ? -1 : fcntl(fd, F_SETFL, flags | O_NONBLOCK);
}

static int set(int fd, int level, int option, int value)
{
    return setsockopt(fd, level, option, &value, sizeof value);
}

/* prepare sets a socket's options. It sends at once: shiva.c gathers small writes. */
static int prepare(int fd)
{
    if (unblock(fd) != 0 || set(fd, IPPROTO_TCP, TCP_NODELAY, 1) != 0)
        return -1;
    if (set(fd, SOL_SOCKET, SO_KEEPALIVE, 1) != 0)
        return -1;
#ifdef TCP_KEEPIDLE /* Probes after a minute of silence, and the end after six without an answer. */
    if (set(fd, IPPROTO_TCP, TCP_KEEPIDLE, 60) != 0)
        return -1;
    if (set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10) != 0)
        return -1;
    if (set(fd, IPPROTO_TCP, TCP_KEEPCNT, 6) != 0)
        return -1;
#endif
    return 0;
}

/* reach connects to one address within the time left. */
static int reach(const struct addrinfo *a, int64_t left)
{
    int fd = socket(a->ai_family, a->ai_socktype, a->ai_protocol), fault = 0;
    socklen_t size = sizeof fault;

    if (fd < 0)
        return -1;
    if (prepare(fd) == 0 && (connect(fd, a->ai_addr, a->ai_addrlen) == 0 ||
                             (errno == EINPROGRESS && await(fd, POLLOUT, &left) == 0 &&
                              getsockopt(fd, SOL_SOCKET, SO_ERROR, &fault, &size) == 0))) {
        errno = fault;
        if (fault == 0)
            return fd;
    }
    fault = errno;
    close(fd);
    errno = fault;
    return -1;
}

/* look_up finds the addresses of a host, which are numbers or have to be asked for. */
static struct addrinfo *look_up(const char *host, const char *port)
{
    struct addrinfo hints, *found;

    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICHOST;
    if (getaddrinfo(host, port, &hints, &found) == 0)
        return found;
    hints.ai_flags = 0;
    return getaddrinfo(host, port, &hints, &found) == 0 ? found : NULL;
}

int shiva_connect(const char *address, unsigned seconds)
{
    struct addrinfo *found, *a;
    const char *port = strrchr(address, ':');
    char host[256];
    int fd = -1, fault = EHOSTUNREACH, untried = 0;
    int64_t due = now() + limit_of(seconds);
    size_t n = port != NULL ? (size_t)(port - address) : 0;

    if (n > 1 && address[0] == '[' && address[n - 1] == ']') {
        address++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof host) {
        errno = EINVAL;
        return -1;
    }
    memcpy(host, address, n);
    host[n] = 0;
    found = look_up(host, port + 1);
    for (a = found; a != NULL; a = a->ai_next)
        untried++;
    for (a = found; a != NULL && fd < 0; a = a->ai_next) {
        int64_t left = due - now();

        fault = ETIMEDOUT;
        if (left <= 0)
            break;
        fd = reach(a, left / untried--);
        fault = errno;
    }
    if (found != NULL)
        freeaddrinfo(found);
    if (fd < 0)
        errno = fault;
    return fd;
}

/* again tells whether a call that failed can be made again, and waits for that. */
static int again(int fd, short ready, int64_t *left)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return await(fd, ready, left) == 0;
    return errno == EINTR;
}

/* moved gives back a second for each 16 KiB, up to the limit: no single wait is longer. */
static ptrdiff_t moved(const struct shiva_socket *k, ssize_t n, int64_t *left)
{
    int64_t limit = limit_of(k->seconds);

    if (n > 0)
        *left += n * (second / 16384);
    if (*left > limit)
        *left = limit;
    return n;
}

static ptrdiff_t socket_send(void *device, const void *bytes, size_t n)
{
    struct shiva_socket *k = device;
    ssize_t sent;

    do
        sent = send(k->fd, bytes, n, MSG_NOSIGNAL);
    while (sent < 0 && again(k->fd, POLLOUT, &k->sending));
    return moved(k, sent, &k->sending);
}

static ptrdiff_t socket_recv(void *device, void *bytes, size_t n)
{
    struct shiva_socket *k = device;
    ssize_t got;

    do
        got = recv(k->fd, bytes, n, 0);
    while (got < 0 && again(k->fd, POLLIN, &k->receiving));
    return moved(k, got, &k->receiving);
}

static void socket_sending(void *device)
{
    struct shiva_socket *k = device;

    k->sending = limit_of(k->seconds);
}

static void socket_receiving(void *device)
{
    struct shiva_socket *k = device;

    k->receiving = limit_of(k->seconds);
}

struct shiva_transport shiva_socket(struct shiva_socket *k, int socket, unsigned seconds)
{
    struct shiva_transport transport = {NULL, socket_send, socket_recv, socket_sending,
                                        socket_receiving};

    k->fd = socket;
    k->seconds = seconds;
    k->sending = k->receiving = limit_of(seconds);
    unblock(socket); /* it fails only where sending and receiving do, too */
    transport.device = k;
    return transport;
}
