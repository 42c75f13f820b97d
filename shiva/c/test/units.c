/* Tests of the promises in shiva.h, call by call. */
#include "memory.h"

#include <stdio.h>
#include <string.h>

static int failed;

static void check(int line, int good, const char *what)
{
    if (good)
        return;
    failed++;
    printf("units.c:%d: not so: %s\n", line, what);
}

#define CHECK(good) check(__LINE__, (good) != 0, #good)

static const uint32_t square[] = {2, 2};

/* The bytes of a request, which do not depend on how it is split. */
static const unsigned char request[] = {
    6, 66, 11, 1, 0, 0, 0, 10, 2, 6, 102, 204,         /* metadata of 10, 2 tensors, route of 6 */
    2, 3, 0, 0, 0, 2, 0, 0, 0, 2, 'a', 'b', 'c', 'd',  /* uint8 [2, 2] */
    1, 6, 0, 0, 0, 2, 1, 2, 255, 254,                  /* int16 [2] */
    '{', '"', 'a', '"', ':', '1', '}', ' ', ' ', ' ',  /* filled up */
    'd', 'i', 'g', 'i', 't', 's',
};

static enum shiva_status send_request(struct shiva *s)
{
    static const uint32_t two[] = {2};
    static const int16_t numbers[] = {0x102, -2};

    shiva_begin(s, 2, 6, 10);
    shiva_tensor(s, SHIVA_UINT8, 2, square);
    shiva_part(s, "abc", 3);
    shiva_part(s, "", 0);
    shiva_part(s, "d", 1);
    shiva_tensor(s, SHIVA_INT16, 1, two);
    shiva_part(s, numbers, 2);
    shiva_part(s, numbers + 1, 2);
    return shiva_end(s, "digits", "{\"a\":1}");
}

static void sending(void)
{
    unsigned char out[2 * sizeof request], buffer[70];
    struct memory m;
    struct shiva s;
    size_t room, n;

    for (room = 1; room <= sizeof buffer; room++)
        for (n = 1; n <= sizeof request; n++) {
            memory_init(&m, NULL, 0, out, sizeof out);
            m.piece = n;
            shiva_init(&s, memory_transport(&m), buffer, room);
            CHECK(send_request(&s) == SHIVA_OK);
            CHECK(send_request(&s) == SHIVA_OK);
            CHECK(m.sent == sizeof out && m.requests == 2);
            CHECK(memcmp(out, request, sizeof request) == 0);
            CHECK(memcmp(out + sizeof request, request, sizeof request) == 0);
        }
    /* Wherever the transport fails, all later calls report it, and nothing more is sent. */
    for (n = 0; n < sizeof request; n++) {
        memory_init(&m, NULL, 0, out, sizeof out);
        m.fails = n;
        shiva_init(&s, memory_transport(&m), buffer, 5);
        CHECK(send_request(&s) == SHIVA_IO);
        CHECK(m.sent == n);
        m.fails = (size_t)-1;
        CHECK(shiva_begin(&s, 0, 0, 0) == SHIVA_IO);
        CHECK(shiva_tensor(&s, SHIVA_UINT8, 0, NULL) == SHIVA_IO);
        CHECK(shiva_part(&s, "a", 1) == SHIVA_IO);
        CHECK(shiva_end(&s, "", NULL) == SHIVA_IO);
        CHECK(m.sent == n);
    }
}

/* Metadata is padded to the announced size, and is {} if there is none. */
static void filling(void)
{
    static const struct {
        uint32_t announced;
        const char *metadata, *sent;
        enum shiva_status status;
    } cases[] = {
        {0, NULL, "", SHIVA_OK},
        {0, "", "", SHIVA_OK},
        {2, NULL, "{}", SHIVA_OK},
        {4, "", "{}  ", SHIVA_OK},
        {7, "{\"a\":1}", "{\"a\":1}", SHIVA_OK},
        {6, "{\"a\":1}", "", SHIVA_LONG},
        {1, NULL, "", SHIVA_LONG},
        {0, "{}", "", SHIVA_LONG},
    };
    unsigned char out[64], buffer[64];
    size_t i;

    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct memory m;
        struct shiva s;

        memory_init(&m, NULL, 0, out, sizeof out);
        shiva_init(&s, memory_transport(&m), buffer, sizeof buffer);
        shiva_begin(&s, 0, 1, cases[i].announced);
        CHECK(shiva_end(&s, "m", cases[i].metadata) == cases[i].status);
        if (cases[i].status != SHIVA_OK)
            continue;
        CHECK(m.sent == 12 + cases[i].announced + 1);
        CHECK(memcmp(out + 12, cases[i].sent, cases[i].announced) == 0 && out[m.sent - 1] == 'm');
    }
}

/* The question for a newest answer is a message without tensors, as whole as its name allows. */
static void newest(void)
{
    static const unsigned char cells[] = {6,   66,  11,  1,   0,   0,   0,   7,   0,   12,  103,
                                          206, '{', '"', 'a', '"', ':', '1', '}', 'c', 'e', 'l',
                                          'l', 's', '/', 'l', 'a', 't', 'e', 's', 't'};
    unsigned char out[64], buffer[8];
    char name[250];
    struct memory m;
    struct shiva s;

    memory_init(&m, NULL, 0, out, sizeof out);
    shiva_init(&s, memory_transport(&m), buffer, sizeof buffer);
    CHECK(shiva_latest(&s, "cells", "{\"a\":1}") == SHIVA_OK);
    CHECK(m.sent == sizeof cells && memcmp(out, cells, sizeof cells) == 0);
    CHECK(shiva_latest(&s, "m", NULL) == SHIVA_OK);
    CHECK(m.sent == sizeof cells + 12 + 8 && memcmp(out + sizeof cells + 12, "m/latest", 8) == 0);
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    CHECK(shiva_latest(&s, name, NULL) == SHIVA_LIMIT);
    CHECK(m.sent == sizeof cells + 12 + 8);
}

/* Calls out of order, or unlike the announcement, are reported, and nothing more is sent. */
static enum shiva_status misused(struct shiva *s, int how)
{
    static const uint32_t huge[] = {65536, 65536}, negative[] = {0, 0x80000000u}, wide[256];

    switch (how) { /* nothing was begun */
    case 0:
        return shiva_part(s, "a", 1);
    case 14:
        return shiva_end(s, "m", NULL);
    case 15:
        return shiva_tensor(s, SHIVA_UINT8, 0, NULL);
    }
    shiva_begin(s, 1, 1, 0);
    switch (how) {
    case 1:
        return shiva_begin(s, 0, 0, 0);
    case 2: /* no tensor was begun */
        return shiva_part(s, "a", 1);
    case 3:
        return shiva_tensor(s, (enum shiva_dtype)16, 0, NULL);
    case 4:
        return shiva_tensor(s, (enum shiva_dtype)18, 0, NULL);
    case 5:
        return shiva_tensor(s, SHIVA_UINT8, 2, huge);
    case 6:
        return shiva_tensor(s, SHIVA_UINT8, 2, negative);
    case 7:
        return shiva_tensor(s, SHIVA_UINT8, 256, wide);
    case 8: /* no tensor at all */
        return shiva_end(s, "m", NULL);
    }
    shiva_tensor(s, SHIVA_UINT32, 2, square);
    switch (how) {
    case 9:
        return shiva_part(s, request, 17);
    case 10: /* half an element */
        return shiva_part(s, request, 6);
    case 11: /* the sensor stopped */
        shiva_part(s, request, 12);
        return shiva_end(s, "m", NULL);
    case 12:
        shiva_part(s, request, 12);
        return shiva_tensor(s, SHIVA_UINT8, 0, NULL);
    case 13:
        shiva_part(s, request, 16);
        return shiva_tensor(s, SHIVA_UINT8, 0, NULL);
    }
    return SHIVA_OK;
}

static void misuse(void)
{
    static const uint32_t largest[] = {65537, 65535}; /* a byte less than 4 GiB */
    static const enum shiva_status expected[] = {
        SHIVA_ORDER,    SHIVA_ORDER, SHIVA_LONG,  SHIVA_DTYPE, SHIVA_DTYPE, SHIVA_LIMIT,
        SHIVA_NEGATIVE, SHIVA_LIMIT, SHIVA_SHORT, SHIVA_LONG,  SHIVA_SHORT, SHIVA_SHORT,
        SHIVA_SHORT,    SHIVA_ORDER, SHIVA_ORDER, SHIVA_ORDER,
    };
    unsigned char buffer[8];
    struct memory m;
    struct shiva s;
    size_t i;

    for (i = 0; i < sizeof expected / sizeof *expected; i++) {
        size_t sent;

        memory_init(&m, NULL, 0, NULL, 0);
        shiva_init(&s, memory_transport(&m), buffer, sizeof buffer);
        CHECK(misused(&s, (int)i) == expected[i]);
        sent = m.sent;
        CHECK(send_request(&s) == expected[i]);
        CHECK(m.sent == sent);
    }
    for (i = 0; i < 4; i++) {
        memory_init(&m, NULL, 0, NULL, 0);
        shiva_init(&s, memory_transport(&m), buffer, i == 3 ? 0 : sizeof buffer);
        CHECK(shiva_begin(&s, i == 0 ? 256 : 0, i == 1 ? 256 : 0, i == 2 ? 1u << 31 : 0) ==
              SHIVA_LIMIT);
        CHECK(m.sent == 0);
    }
    memory_init(&m, NULL, 0, NULL, 0);
    shiva_init(&s, memory_transport(&m), buffer, sizeof buffer);
    CHECK(shiva_begin(&s, UINT8_MAX, UINT8_MAX, INT32_MAX) == SHIVA_OK);
    CHECK(shiva_tensor(&s, SHIVA_UINT8, 2, largest) == SHIVA_OK);
}

/* An answer of two tensors, then an error. */
static const unsigned char answers[] = {
    6, 66, 11, 1, 0, 0, 0, 7, 2, 1, 94, 188,
    1, 7, 0, 0, 0, 2, 1, 2, 3, 4, 5, 6, 7, 8,  /* uint32 [2] */
    0, 13, 0, 0, 0, 0, 0, 0, 0, 4,             /* int64 [] */
    '{', '"', 'a', '"', ':', '1', '}', 'm',
    6, 66, 11, 1, 0, 0, 0, 12, 0, 6, 102, 204,
    '{', '"', 't', 'y', 'p', 'e', '"', ':', '"', 'X', '"', '}', '!', 'e', 'r', 'r', 'o', 'r',
};

/* read_both reads both answers; parts is how much of each tensor: 0 all, 1 some, 2 nothing. */
static enum shiva_status read_both(struct shiva *s, int parts)
{
    struct shiva_answer a;
    enum shiva_status status;
    char metadata[20] = "";

    status = shiva_answer(s, &a);
    if (status == SHIVA_OK)
        CHECK(a.tensors == 2 && a.metadata == 7);
    if (parts < 2) {
        struct shiva_tensor t;
        uint32_t shape[1], first[2] = {0, 0};
        int64_t label = 0;

        status = shiva_next(s, &t, shape, 1);
        if (status == SHIVA_OK)
            CHECK(t.dtype == SHIVA_UINT32 && t.rank == 1 && t.bytes == 8 && shape[0] == 2);
        shiva_read(s, first, 4);
        if (parts == 0)
            shiva_read(s, first + 1, 4);
        status = shiva_next(s, &t, parts == 0 ? shape : NULL, parts == 0 ? 1 : 0);
        if (status == SHIVA_OK) {
            CHECK(t.dtype == SHIVA_INT64 && t.rank == 0 && t.bytes == 8);
            CHECK(first[0] == 0x1020304 && first[1] == (parts == 0 ? 0x5060708 : 0));
        }
        status = shiva_read(s, &label, parts == 0 ? 8 : 0);
        if (status == SHIVA_OK)
            CHECK(label == (parts == 0 ? 4 : 0));
    }
    status = shiva_finish(s, metadata, sizeof metadata);
    if (status == SHIVA_OK)
        CHECK(strcmp(metadata, "{\"a\":1}") == 0);
    shiva_answer(s, &a);
    status = shiva_finish(s, metadata, sizeof metadata);
    if (status == SHIVA_REFUSED)
        CHECK(a.tensors == 0 && strcmp(metadata, "{\"type\":\"X\"}") == 0);
    return status;
}

static void receiving(void)
{
    const size_t first = 12 + 14 + 10 + 8;
    struct memory m;
    struct shiva s;
    struct shiva_answer a;
    size_t n;
    int parts, how;

    for (parts = 0; parts < 3; parts++)
        for (n = 1; n <= sizeof answers; n++) {
            memory_init(&m, answers, sizeof answers, NULL, 0);
            m.piece = n;
            shiva_init(&s, memory_transport(&m), NULL, 0);
            CHECK(read_both(&s, parts) == SHIVA_REFUSED && m.answers == 2);
            CHECK(shiva_answer(&s, &a) == SHIVA_CLOSED);
        }
    /* Wherever the connection ends, and whether it is closed or fails. */
    for (how = 0; how < 2; how++)
        for (n = 0; n < sizeof answers; n++) {
            enum shiva_status expected = SHIVA_TRUNCATED;

            if (n == 0 || n == first)
                expected = SHIVA_CLOSED;
            if (how)
                expected = SHIVA_IO;
            memory_init(&m, answers, how ? sizeof answers : n, NULL, 0);
            if (how)
                m.fails = n;
            shiva_init(&s, memory_transport(&m), NULL, 0);
            CHECK(read_both(&s, 0) == expected);
            m.fails = (size_t)-1;
            m.in = answers;
            m.coming = sizeof answers;
            CHECK(read_both(&s, 0) == expected);
            CHECK(m.coming == sizeof answers);
        }
}

/* Sizes and calls that do not fit the answer. */
static void unfitting(void)
{
    static const enum shiva_status expected[] = {
        SHIVA_ORDER, SHIVA_ORDER, SHIVA_ORDER, SHIVA_ORDER, SHIVA_LONG,
        SHIVA_LONG,  SHIVA_SHORT, SHIVA_RANK,  SHIVA_ORDER,
    };
    size_t i;

    for (i = 0; i < sizeof expected / sizeof *expected; i++) {
        enum shiva_status status = SHIVA_OK;
        struct memory m;
        struct shiva s;
        struct shiva_answer a;
        struct shiva_tensor t;
        uint32_t shape[3];
        unsigned char bytes[16];

        memory_init(&m, answers, sizeof answers, NULL, 0);
        shiva_init(&s, memory_transport(&m), NULL, 0);
        if (i > 2)
            CHECK(shiva_answer(&s, &a) == SHIVA_OK);
        if (i > 4 && i < 7)
            CHECK(shiva_next(&s, &t, shape, 3) == SHIVA_OK);
        switch (i) {
        case 0:
            status = shiva_next(&s, &t, shape, 3);
            break;
        case 1:
            status = shiva_read(&s, bytes, 1);
            break;
        case 2:
            status = shiva_finish(&s, NULL, 0);
            break;
        case 3:
            status = shiva_answer(&s, &a);
            break;
        case 4: /* before the first tensor */
            status = shiva_read(&s, bytes, 1);
            break;
        case 5:
            status = shiva_read(&s, bytes, 9);
            break;
        case 6:
            status = shiva_read(&s, bytes, 3);
            break;
        case 7:
            m.in = request;
            m.coming = sizeof request;
            shiva_init(&s, memory_transport(&m), NULL, 0);
            shiva_answer(&s, &a);
            status = shiva_next(&s, &t, shape, 1);
            break;
        case 8:
            shiva_next(&s, &t, shape, 3);
            shiva_next(&s, &t, shape, 3);
            status = shiva_next(&s, &t, shape, 3);
            break;
        }
        CHECK(status == expected[i]);
        CHECK(shiva_answer(&s, &a) == expected[i]);
    }
}

/* A transport that claims to have moved more than it was given, or nothing. */
static ptrdiff_t liar_send(void *device, const void *bytes, size_t n)
{
    (void)bytes;
    return *(const int *)device ? (ptrdiff_t)n + 1 : 0;
}

static ptrdiff_t liar_recv(void *device, void *bytes, size_t n)
{
    (void)device;
    (void)bytes;
    return (ptrdiff_t)n + 1;
}

static void liars(void)
{
    int more;

    for (more = 0; more < 2; more++) {
        struct shiva_transport liar = {NULL, liar_send, liar_recv, NULL, NULL};
        unsigned char buffer[16];
        struct shiva s;
        struct shiva_answer a;

        liar.device = &more;
        shiva_init(&s, liar, buffer, sizeof buffer);
        CHECK(send_request(&s) == SHIVA_IO);
        CHECK(shiva_answer(&s, &a) == SHIVA_IO);
    }
}

/* Metadata is cut to its room, whatever that is, and nothing after it is written. */
static void bounds(void)
{
    size_t room;

    for (room = 0; room < 12; room++) {
        char metadata[16];
        struct memory m;
        struct shiva s;
        struct shiva_answer a;
        size_t n = room > 7 ? 7 : room > 0 ? room - 1 : 0;

        memset(metadata, '#', sizeof metadata);
        memory_init(&m, answers, sizeof answers, NULL, 0);
        shiva_init(&s, memory_transport(&m), NULL, 0);
        shiva_answer(&s, &a);
        CHECK(shiva_finish(&s, metadata, room) == SHIVA_OK);
        CHECK(memcmp(metadata, "{\"a\":1}", n) == 0);
        CHECK(metadata[n] == (room > 0 ? 0 : '#') && metadata[n + 1] == '#');
        CHECK(shiva_answer(&s, &a) == SHIVA_OK && shiva_finish(&s, NULL, 0) == SHIVA_REFUSED);
    }
}

static void members(void)
{
    static const struct {
        const char *object, *key, *value;
    } cases[] = {
        {"{\"a\":1}", "a", "1}"},
        {" { \"a\" : true , \"b\" : \"x\" } ", "b", "\"x\" } "},
        {"{\"b\":{\"a\":1,\"c\":[{}]},\"a\":2}", "a", "2}"},
        {"{\"b\":\"\\\"a\\\":3\",\"a\":[1,2]}", "a", "[1,2]}"},
        {"{\"ab\":1,\"a\":2}", "a", "2}"},
        {"{\"a\":1,\"ab\":2}", "ab", "2}"},
        {"{\"a\\\"b\":1}", "a\\", NULL},
        {"{\"a\":\"x\\\\\",\"b\":null}", "b", "null}"},
        {"{}", "a", NULL},
        {"", "a", NULL},
        {"[1]", "a", NULL},
        {"{\"a\"}", "a", NULL},
        {"{\"a\":}", "a", NULL},
        {"{\"a\":,\"b\":1}", "b", NULL},
        {"{a:1}", "a", NULL},
        {"{\"a\":]]]]", "a", NULL},
        {"{\"\":1}", "", "1}"},
    };
    size_t i, n;

    for (i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *found = shiva_member(cases[i].object, cases[i].key);

        if (cases[i].value == NULL)
            CHECK(found == NULL);
        else
            CHECK(found != NULL && strcmp(found, cases[i].value) == 0);
        /* However the text is cut, a value is found whole or not at all. */
        for (n = 0; n < strlen(cases[i].object); n++) {
            char cut[64] = "";

            memcpy(cut, cases[i].object, n);
            found = shiva_member(cut, cases[i].key);
            if (found == NULL)
                continue;
            CHECK(cases[i].value != NULL && strlen(found) > 1);
            CHECK(strncmp(found, cases[i].value, strlen(found)) == 0);
        }
    }
}

/* A text is read whole and unescaped, or not at all, and nothing after its room is written. */
static void texts(void)
{
    static const struct {
        const char *object, *text;
    } cases[] = {
        {"{\"a\":\"\"}", ""},
        {"{\"b\":\"x\",\"a\":\"cat\"}", "cat"},
        {"{\"a\":\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"}", "\"\\/\b\f\n\r\t"},
        {"{\"a\":\"\\u003c\\u00E9\\u20ac\\ud83d\\ude00\"}", "<\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"{\"a\":\"\\ud83dx\\ude00\"}", "\xef\xbf\xbdx\xef\xbf\xbd"},
        {"{\"a\":\"\\ud83d\\u0041\"}", "\xef\xbf\xbd" "A"},
        {"{\"a\":\"\\x\"}", NULL},
        {"{\"a\":\"\\u12\"}", NULL},
        {"{\"a\":1}", NULL},
        {"{\"b\":\"x\"}", NULL},
    };
    size_t i, room;

    for (i = 0; i < sizeof cases / sizeof *cases; i++)
        for (room = 0; room < 16; room++) {
            const char *want = cases[i].text;
            enum shiva_status status, expected = SHIVA_OK;
            char text[17];

            memset(text, '#', sizeof text);
            if (want == NULL)
                expected = SHIVA_ORDER;
            else if (strlen(want) >= room)
                expected = SHIVA_LIMIT;
            status = shiva_text(cases[i].object, "a", text, room);
            CHECK(status == expected);
            CHECK(text[room] == '#');
            if (room > 0)
                CHECK(strcmp(text, status == SHIVA_OK && want != NULL ? want : "") == 0);
        }
}

static void adding(void)
{
    char unended[2] = {'{', '}'};
    static const char all[] = "{\"stream\":\"a\\\"\\\\\\u000a\\u001f\xc3\xa9\",\"seq\":0,"
                              "\"lowest\":-9223372036854775808,\"highest\":9223372036854775807}";
    size_t room;

    CHECK(shiva_add_number(unended, sizeof unended, "n", 1) == SHIVA_ORDER);
    for (room = 0; room < sizeof all + 4; room++) {
        char object[sizeof all + 8];
        enum shiva_status status[4];
        size_t n;

        memset(object, '#', sizeof object);
        memcpy(object, "{}", room < 3 ? room : 3);
        status[0] = shiva_add_text(object, room, "stream", "a\"\\\n\037\xc3\xa9");
        status[1] = shiva_add_number(object, room, "seq", 0);
        status[2] = shiva_add_number(object, room, "lowest", INT64_MIN);
        status[3] = shiva_add_number(object, room, "highest", INT64_MAX);
        CHECK(object[room] == '#');
        if (room < 3) {
            CHECK(status[0] == SHIVA_ORDER);
            continue;
        }
        CHECK(status[3] == (room < sizeof all ? SHIVA_LIMIT : SHIVA_OK));
        CHECK((status[0] == SHIVA_OK) == (shiva_member(object, "stream") != NULL));
        CHECK((status[1] == SHIVA_OK) == (shiva_member(object, "seq") != NULL));
        CHECK((status[2] == SHIVA_OK) == (shiva_member(object, "lowest") != NULL));
        n = strlen(object);
        CHECK(n < room && object[n - 1] == '}');
        if (room >= sizeof all)
            CHECK(strcmp(object, all) == 0);
    }
}

static void words(void)
{
    int i, j;

    for (i = SHIVA_OK; i <= SHIVA_DTYPE + 1; i++)
        for (j = SHIVA_OK; j < i; j++)
            CHECK(shiva_explain((enum shiva_status)i) != shiva_explain((enum shiva_status)j));
}

int units(void)
{
    sending();
    filling();
    newest();
    misuse();
    receiving();
    unfitting();
    liars();
    bounds();
    members();
    texts();
    adding();
    words();
    printf("units: %d failed\n", failed);
    return failed;
}
