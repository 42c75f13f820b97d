/*
 * A client of Shiva for devices: C99, without memory of its own, without any library.
 *
 * A request goes out in pieces, so that a frame never has to be in memory: the wire has all sizes
 * first, then the elements of tensors, and metadata and route last. A line of a picture can leave
 * while the sensor still exposes the next one:
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
 * Answers come in pieces, too, in the order of the requests:
 *
 *     shiva_answer(&s, &answer);                 how many tensors
 *     shiva_next(&s, &tensor, shape, 4);         the first one's dtype, shape and bytes
 *     shiva_read(&s, scores, sizeof scores);     as often as it takes, or not at all
 *     status = shiva_finish(&s, metadata, sizeof metadata);
 *
 * Faults stay. After one (but for SHIVA_REFUSED) every later call of its direction does nothing and
 * returns the same, so that only the last of a sequence need be looked at. The two ends of the
 * connection are out of step then: close it, connect again, and call shiva_init.
 *
 * Elements are in the order of the host, whichever it is, with any alignment; the wire's is
 * big-endian. Sizes are in bytes where the name does not say otherwise. Nothing that is passed in
 * is kept after a call but the transport, its device and the buffer.
 *
 * Sending (begin, tensor, part, end) and receiving (answer, next, read, finish) share nothing: a
 * task may send while another one receives, each of them alone. A call waits where the transport
 * does, so none belongs in an interrupt. Two connections have nothing in common.
 *
 * The protocol is in ../README.md.
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
    SHIVA_REFUSED,   /* the server answered "!error", metadata says why; no fault of the connection */
    SHIVA_IO,        /* the transport failed, or gave up waiting */
    SHIVA_CLOSED,    /* the server closed the connection between two answers */
    SHIVA_TRUNCATED, /* the server closed the connection inside of an answer */
    SHIVA_ORDER,     /* a call when it was not its turn */
    SHIVA_SHORT,     /* fewer elements were sent than the tensor's shape says, or part of one */
    SHIVA_LONG,      /* more elements than the shape says, or metadata than was announced */
    SHIVA_LIMIT,     /* more than the wire has room for, or a tensor of 4 GiB and more */
    SHIVA_RANK,      /* an answer's tensor has more dimensions than there is room for */
    SHIVA_MAGIC,     /* what came is no answer: does Shiva listen there, without TLS? */
    SHIVA_CRC,       /* a header's checksum is wrong: bytes were changed or lost on the way */
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
    SHIVA_LONGDOUBLE = 12, /* 16 bytes, of which x86 uses the first ten; sent with the rest as 0 */
    SHIVA_INT64 = 13,
    SHIVA_COMPLEX64 = 14, /* two float32: real, imaginary */
    SHIVA_COMPLEX128 = 15,
    SHIVA_BOOL = 17 /* one byte, true unless 0 */
};

/*
 * How bytes get to the server and back. Both functions may wait, and move at least one byte and at
 * most n; they return how many. send returns 0 or less if it failed; recv 0 if the server closed
 * the connection, and less if it failed or gave up waiting. device is passed to both as it is here.
 * shiva_posix.h has one for sockets.
 */
struct shiva_transport {
    void *device;
    ptrdiff_t (*send)(void *device, const void *bytes, size_t n);
    ptrdiff_t (*recv)(void *device, void *bytes, size_t n);
};

/* A connection. Its fields are private to shiva.c. */
struct shiva {
    struct shiva_transport transport;
    struct { /* belongs to who sends */
        unsigned char *buffer;
        size_t room, used;
        uint32_t left;     /* bytes of the tensor that were not sent yet */
        uint32_t metadata; /* bytes of it that were announced */
        uint8_t tensors;   /* that were not begun yet */
        uint8_t route;     /* bytes of it that were announced */
        uint8_t dtype;
        uint8_t inside; /* of a request */
        enum shiva_status fault;
    } out;
    struct { /* belongs to who receives */
        uint32_t left, metadata;
        uint8_t tensors, route, dtype, inside;
        enum shiva_status fault;
    } in;
};

/*
 * shiva_init makes s ready for a connection that transport has just made. Bytes that go out are
 * gathered in buffer and sent when it is full and at the end of each request, but for large parts
 * of elements of one byte, which are sent from where they are. buffer belongs to s as long as s is
 * used; room is its size, 1 or more: 64 saves what fits it the small writes, more saves further
 * ones.
 */
void shiva_init(struct shiva *s, struct shiva_transport transport, void *buffer, size_t room);

/*
 * shiva_begin begins a request: how many tensors it has (0 to 255), the bytes of its route (0 to
 * 255), and for how many bytes of metadata there shall be room (0 to 2^31 - 1). What is not used of
 * them travels as blanks.
 */
enum shiva_status shiva_begin(struct shiva *s, unsigned tensors, size_t route, uint32_t metadata);

/*
 * shiva_tensor begins a tensor: as often as shiva_begin said. shape has rank dimensions (0 to 255,
 * each up to 2^31 - 1). A tensor has less than 4 GiB.
 */
enum shiva_status shiva_tensor(struct shiva *s, enum shiva_dtype dtype, unsigned rank,
                               const uint32_t *shape);

/* shiva_part sends the next elements of the tensor, in C order: whole ones, of that many bytes. */
enum shiva_status shiva_part(struct shiva *s, const void *elements, size_t bytes);

/*
 * shiva_end ends the request: its route, of as many bytes as were announced ("digits", "digits/1"),
 * and its metadata, the text of a JSON object that ends with a NUL; NULL or "" is {}. A request
 * whose tensors were not sent whole is SHIVA_SHORT, and the connection of no more use.
 */
enum shiva_status shiva_end(struct shiva *s, const char *route, const char *metadata);

/* What an answer begins with. */
struct shiva_answer {
    unsigned tensors;
    uint32_t metadata; /* bytes of it; "!error" has no tensors, and always metadata */
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
 * shiva_next goes to the next tensor of the answer; what was not read of the one before is skipped.
 * Its dimensions are written to shape, which has room for that many; with room 0 they are skipped.
 * After the last tensor it is SHIVA_ORDER.
 */
enum shiva_status shiva_next(struct shiva *s, struct shiva_tensor *tensor, uint32_t *shape,
                             unsigned room);

/*
 * shiva_read reads the next elements of the tensor, in C order: whole ones, of that many bytes.
 * More than there are is SHIVA_LONG; *elements holds nothing of use after a fault.
 */
enum shiva_status shiva_read(struct shiva *s, void *elements, size_t bytes);

/*
 * shiva_finish skips what was not read of the answer's tensors, writes its metadata to metadata, as
 * much as there is room for with a NUL behind it, and skips the rest; with room 0 all of it. It is
 * SHIVA_REFUSED if the answer is an error of the server: then metadata has "type" first, and
 * further on "message", "code" and "retryable" (shiva_member finds them).
 */
enum shiva_status shiva_finish(struct shiva *s, char *metadata, size_t room);

/*
 * shiva_add_text and shiva_add_number add a member to an object of JSON: a text that ends with a
 * NUL, "{}" at first, in memory of room bytes. Texts are UTF-8; what JSON reserves in them is
 * escaped. A member that does not fit is SHIVA_LIMIT, and of something that ends with no brace
 * SHIVA_ORDER; the object stays as it was. They may be called from anywhere.
 *
 *     shiva_add_text(metadata, sizeof metadata, "token", token);      in the first request of a
 *                                                                     connection: who the device is
 *     shiva_add_text(metadata, sizeof metadata, "stream", "cam-3");   the request is a frame of it
 *     shiva_add_text(metadata, sizeof metadata, "keep", "latest");    the newest frame counts
 *     shiva_add_number(metadata, sizeof metadata, "seq", 17);
 */
enum shiva_status shiva_add_text(char *object, size_t room, const char *key, const char *text);
enum shiva_status shiva_add_number(char *object, size_t room, const char *key, int64_t number);

/*
 * shiva_member finds a member of an object of JSON, and points to the first character of its value:
 * '"' of a text, '{', '[', a digit, ... It is NULL if there is none of this key, or not all of its
 * value, as when there was no room for it. Keys with escapes are not found.
 */
const char *shiva_member(const char *object, const char *key);

/* shiva_explain says in words what a status means. */
const char *shiva_explain(enum shiva_status status);

#ifdef __cplusplus
}
#endif

#endif
