// A client with the habits of the reference's example in C++: it sends two pictures, a number and a
// table, each field with a call of its own and numbers in the order of its machine, takes every
// field of an answer from one recv, and sends the answer as its next question. It prints the
// metadata of each answer, and ends with 1 where the example does.
//
//     example_client ADDRESS PORT QUESTIONS
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

namespace {

int wire;

[[noreturn]] void die(const char *why) {
    std::cout << why << std::endl;
    std::exit(1);
}

void give(const void *bytes, size_t n) {
    if (send(wire, bytes, n, 0) != static_cast<ssize_t>(n)) die("cannot send");
}

void take(void *bytes, size_t n) { // what a segment has, and no more
    if (recv(wire, bytes, n, 0) != static_cast<ssize_t>(n)) die("a field in pieces");
}

void gather(void *bytes, size_t n) {
    if (n > 0 && recv(wire, bytes, n, MSG_WAITALL) != static_cast<ssize_t>(n)) die("the end");
}

struct Tensor {
    uint8_t dtype;
    std::vector<uint32_t> shape;
    std::vector<uint8_t> data;
};

struct Message {
    std::string metadata, name;
    std::vector<Tensor> tensors;

    void put() const {
        uint8_t head[12] = {6, 66, 11, 1};
        uint32_t size = htonl(static_cast<uint32_t>(metadata.size()));
        std::memcpy(head + 4, &size, 4);
        head[8] = static_cast<uint8_t>(tensors.size());
        head[9] = static_cast<uint8_t>(name.size());
        head[10] = static_cast<uint8_t>(84 + metadata.size() + tensors.size() + name.size());
        head[11] = static_cast<uint8_t>(2 * head[10]);
        give(head, sizeof head);
        for (const Tensor &t : tensors) {
            const uint8_t kind[2] = {static_cast<uint8_t>(t.shape.size()), t.dtype};
            std::vector<uint32_t> shape;
            for (uint32_t n : t.shape) shape.push_back(htonl(n));
            give(kind, sizeof kind);
            give(shape.data(), 4 * shape.size());
            give(t.data.data(), t.data.size());
        }
        give(metadata.data(), metadata.size());
        give(name.data(), name.size());
    }

    static Message get() {
        Message m;
        uint8_t head[12];
        uint32_t size;
        take(head, sizeof head);
        std::memcpy(&size, head + 4, 4);
        for (int i = 0; i < head[8]; i++) {
            uint8_t kind[2];
            take(kind, sizeof kind);
            std::vector<uint32_t> shape(kind[0]);
            take(shape.data(), 4 * shape.size());
            size_t bytes = kind[1] == 3 ? 1 : 4;
            if (kind[1] != 1 && kind[1] != 3 && kind[1] != 7) die("a dtype that it does not know");
            for (uint32_t &n : shape) bytes *= n = ntohl(n);
            m.tensors.push_back({kind[1], shape, std::vector<uint8_t>(bytes)});
            gather(m.tensors.back().data.data(), bytes);
        }
        m.metadata.resize(ntohl(size));
        gather(m.metadata.data(), m.metadata.size());
        m.name.resize(head[9]);
        gather(m.name.data(), m.name.size());
        if (m.metadata.empty()) die("metadata that is no JSON");
        return m;
    }
};

} // namespace

int main(int argc, char **argv) {
    if (argc < 4) die("example_client ADDRESS PORT QUESTIONS");
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_port = htons(static_cast<uint16_t>(std::atoi(argv[2])));
    to.sin_addr.s_addr = inet_addr(argv[1]);
    int on = 1;
    wire = socket(PF_INET, SOCK_STREAM, 0);
    if (connect(wire, reinterpret_cast<sockaddr *>(&to), sizeof to) < 0) die("cannot connect");
    setsockopt(wire, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const Tensor picture = {3, {1920, 1080, 3}, std::vector<uint8_t>(1920 * 1080 * 3)};
    Message message = {R"({"__tensors__":["tensor_1","tensor_2","counter","tensor_4"],"counter":0})", "inference",
                       {picture, picture, {1, {1}, std::vector<uint8_t>(4)}, {7, {10, 10}, std::vector<uint8_t>(400)}}};
    for (int i = std::atoi(argv[3]); i > 0; i--) {
        message.put();
        message = Message::get();
        std::cout << message.name << ' ' << message.tensors.size() << ' ' << message.metadata << std::endl;
    }
}
