/*
 * A Shiva client for devices: C99, no memory allocation, no library.
 *
 * A request is sent in pieces, so that a frame never has to be in memory as a whole: the wire has
 * all sizes first, then the elements of tensors, and metadata and route last. A line of a picture
 * can be sent while the sensor still exposes the next one:
 *
 *     static const uint32_t shape[] = {480, 640, 3};
 *     char metadata[96] = "{}";
 *     shiva_begin(&s, 1, 6, 96);                 a tensor, 6 bytes of route, up to 96 of metadata
 *     shiva_tensor(&s, SHIVA_UINT8, 3, shape);
 *     for (y = 0; y < 480; y++)
 *         shiva_part(&s, line(y), 640 * 3);
 *     shiva_add_number(metadata, sizeof metadata, "captured_at", now);
 *     status = shiva_end(&s, "digits", metadata);
 *
 * Answers are read in pieces, too, in the order of the requests:
 *
 *     shiva_answer(&s, &answer);                 how many tensors
 *     shiva_next(&s, &tensor, shape, 4);         the first one's dtype, shape and bytes
 *     shiva_read(&s, scores, sizeof scores);     as often as it takes, or not at all
 *     status = shiva_finish(&s, metadata, sizeof metadata);
 *
 * Faults are sticky. After one (except SHIVA_REFUSED), every later call of its direction does
 * nothing and returns the same status, so that checking the last status of a sequence is enough.
 * The two ends of the connection are then out of step: close it, connect again, and call
 * shiva_init.
 *
 * Elements are in the byte order of the host, whatever it is, with any alignment; the wire's is
 * big-endian. Sizes are in bytes unless the name says otherwise. The client keeps no argument after
 * a call, except the transport, its device and the buffer.
 *
 * Sending (begin, tensor, part, end) and receiving (answer, next, read, finish) share no state: one
 * task may send while another one receives. A call blocks if the transport does, so make none in an
 * interrupt handler. Connections share no state either.
 *
 * server/manual/wire.md describes the protocol.
 */
#ifndef SHIVA_H
#define SHIVA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum shiva_status {
    SHIVA_OK,
    SHIVA_REFUSED,   /* the server answered "!error", reason in metadata; not a connection fault */
    SHIVA_IO,        /* the transport failed or timed out */
    SHIVA_CLOSED,    /* the server closed the connection between two answers */
    SHIVA_TRUNCATED, /* the server closed the connection inside an answer */
    SHIVA_ORDER,     /* a call out of order */
    SHIVA_SHORT,     /* fewer elements than the tensor's shape has, or part of one */
    SHIVA_LONG,      /* more elements than the shape has, or more metadata than announced */
    SHIVA_LIMIT,     /* more than the wire can express, or a tensor of 4 GiB or more */
    SHIVA_RANK,      /* a tensor of an answer has more dimensions than there is room for */
    SHIVA_MAGIC,     /* not an answer: does a Shiva server listen there, without TLS? */
    SHIVA_CRC,       /* a header's checksum is wrong: bytes were changed or lost in transit */
    SHIVA_NEGATIVE,  /* a size or a dimension is negative */
    SHIVA_DTYPE      /* no such dtype */
};

/* The dtypes, by their codes on the wire. */
enum shiva_dtype {
    SHIVA_FLOAT16 = 0,
    SHIVA_FLOAT32 = 1,
    SHIVA_UINT8 = 3,
    SHIVA_INT8 = 4,
    SHIVA_UINT16 = 5,
    SHIVA_INT16 = 6,
    SHIVA_UINT32 = 7,
    SHIVA_INT32 = 8,
    SHIVA_UINT64 = 9,
    SHIVA_FLOAT64 = 11,
    SHIVA_LONGDOUBLE = 12, /* 16 bytes, of which x86 uses the first ten; the rest is sent as 0 */
    SHIVA_INT64 = 13,
    SHIVA_COMPLEX64 = 14, /* two float32: real, imaginary */
    SHIVA_COMPLEX128 = 15,
    SHIVA_BOOL = 17 /* one byte; any value but 0 is true */
};

/*
 * How bytes get to the server and back. send and recv may block, must move at least one byte and
 * at most n, and return how many. send returns 0 or less if it failed; recv returns 0 if the server
 * closed the connection, and less if it failed or timed out. device is passed to all unchanged.
 *
 * A transport that bounds how long a whole request or answer takes starts its clocks in sending,
 * which is called as a request begins, and receiving, as the wait for an answer begins. Without
 * such bounds they are NULL. shiva_posix.h has a transport for sockets.
 */
struct shiva_transport {
    void *device;
    ptrdiff_t (*send)(void *device, const void *bytes, size_t n);
    ptrdiff_t (*recv)(void *device, void *bytes, size_t n);
    void (*sending)(void *device);
    void (*receiving)(void *device);
};

/* A connection. Its fields are private to shiva.c. */
struct shiva {
    struct shiva_transport transport;
    struct { /* for the sending task */
        unsigned char *buffer;
        size_t room, used;
        uint32_t left;     /* unsent bytes of the tensor */
        uint32_t metadata; /* bytes announced */
        uint8_t tensors;   /* not begun yet */
        uint8_t route;     /* bytes announced */
        uint8_t dtype;
        uint8_t inside; /* inside a request */
        enum shiva_status fault;
    } out;
    struct { /* for the receiving task */
        uint32_t left, metadata;
        uint8_t tensors, route, dtype, inside;
        enum shiva_status fault;
    } in;
};

/*
 * shiva_init prepares s for a connection that transport has just made. Outgoing bytes are gathered
 * in buffer, and sent when it is full and at the end of each request, except large parts of
 * one-byte elements, which are sent directly. buffer belongs to s as long as s is used; room is its
 * size, 1 or more: 64 avoids most small writes, more avoids further ones.
 */
void shiva_init(struct shiva *s, struct shiva_transport transport, void *buffer, size_t room);

/*
 * shiva_begin begins a request: the number of tensors (0 to 255), the bytes of its route (0 to
 * 255), and the bytes to reserve for metadata (0 to 2^31 - 1). Unused ones are sent as blanks.
 */
enum shiva_status shiva_begin(struct shiva *s, unsigned tensors, size_t route, uint32_t metadata);

/*
 * shiva_tensor begins a tensor. Call it for each tensor announced to shiva_begin. shape has rank
 * dimensions (0 to 255, each up to 2^31 - 1). A tensor has less than 4 GiB.
 */
enum shiva_status shiva_tensor(struct shiva *s, enum shiva_dtype dtype, unsigned rank,
                               const uint32_t *shape);

/* shiva_part sends the next elements of the tensor, in C order; bytes must be whole elements. */
enum shiva_status shiva_part(struct shiva *s, const void *elements, size_t bytes);

/*
 * shiva_end ends the request with its route, of as many bytes as announced ("digits", "digits/1"),
 * and its metadata, the text of a JSON object that ends with a NUL; NULL or "" is {}. If tensors
 * are incomplete, it returns SHIVA_SHORT, and the connection is unusable.
 */
enum shiva_status shiva_end(struct shiva *s, const char *route, const char *metadata);

/*
 * shiva_latest sends a whole request: for the newest answer of a stream whose frames are sent to
 * that model ("cells"), by whatever client. metadata is as in shiva_end, and names the stream if
 * there are several; "wait" true waits for the next one. The answer is read as any other: its
 * tensors are those of the model, and its metadata has "seq", "age_ms" and "skipped".
 *
 *     shiva_latest(&s, "cells", "{\"stream\":\"belt-3\",\"max_age_ms\":500}");
 */
enum shiva_status shiva_latest(struct shiva *s, const char *model, const char *metadata);

/* The beginning of an answer. */
struct shiva_answer {
    unsigned tensors;
    uint32_t metadata; /* in bytes; "!error" has no tensors, and always metadata */
};

/* A tensor of an answer. */
struct shiva_tensor {
    enum shiva_dtype dtype;
    unsigned rank;
    uint32_t bytes; /* of its elements */
};

/* shiva_answer waits for the next answer, after shiva_finish of the one before. */
enum shiva_status shiva_answer(struct shiva *s, struct shiva_answer *answer);

/*
 * shiva_next goes to the next tensor of the answer, and skips unread elements of the previous one.
 * It writes the dimensions to shape, which has room for that many; with room 0 it skips them. After
 * the last tensor it returns SHIVA_ORDER.
 */
enum shiva_status shiva_next(struct shiva *s, struct shiva_tensor *tensor, uint32_t *shape,
                             unsigned room);

/*
 * shiva_read reads the next elements of the tensor, in C order; bytes must be whole elements.
 * Reading more than there are returns SHIVA_LONG; after a fault *elements is undefined.
 */
enum shiva_status shiva_read(struct shiva *s, void *elements, size_t bytes);

/*
 * shiva_finish skips the unread tensors of the answer, writes as much of its metadata as fits room
 * with a final NUL to metadata, and skips the rest; with room 0 it skips all of it. It returns
 * SHIVA_REFUSED if the answer is an error: then metadata has "type" first, and later "message",
 * "code" and "retryable" (shiva_member finds them).
 */
enum shiva_status shiva_finish(struct shiva *s, char *metadata, size_t room);

/*
 * shiva_add_text and shiva_add_number add a member to a JSON object: a text that ends with a NUL,
 * "{}" at first, in memory of room bytes. Texts are UTF-8; characters that JSON reserves are
 * escaped. If the member does not fit, they return SHIVA_LIMIT, and if object does not end with a
 * brace, SHIVA_ORDER; the object is then unchanged. They may be called from anywhere.
 *
 *     shiva_add_text(metadata, sizeof metadata, "token", token);      in the first request of a
 *                                                                     connection: who the device is;
                                                                     best a small one to "!whoami"
 *     shiva_add_text(metadata, sizeof metadata, "stream", "cam-3");   the request is a frame of it
 *     shiva_add_text(metadata, sizeof metadata, "keep", "latest");    the newest frame counts
 *     shiva_add_number(metadata, sizeof metadata, "seq", 17);
 */
enum shiva_status shiva_add_text(char *object, size_t room, const char *key, const char *text);
enum shiva_status shiva_add_number(char *object, size_t room, const char *key, int64_t number);

/*
 * shiva_member finds a member of a JSON object, and returns a pointer to the first character of its
 * value: '"' of a text, '{', '[', a digit, ... It returns NULL if there is no such key, or if its
 * value is incomplete, for lack of room. Keys with escapes are not found.
 */
const char *shiva_member(const char *object, const char *key);

/*
 * shiva_text writes a member that is a text, such as a label, to text: UTF-8 without quotes and
 * escapes, with a final NUL, which counts in room. It returns SHIVA_ORDER if object has no such
 * member, or if that is no text, and SHIVA_LIMIT if it does not fit; text is then "". A NUL of the
 * text itself ends it.
 */
enum shiva_status shiva_text(const char *object, const char *key, char *text, size_t room);

/* shiva_explain describes a status in words. */
const char *shiva_explain(enum shiva_status status);

#ifdef __cplusplus
}
#endif

#endif
