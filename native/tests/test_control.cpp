// The agent against a controller in this test, over a socket pair.
#include <doctest/doctest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <string>
#include <thread>

#include "builder.h"
#include "clock.h"
#include "control.h"
#include "sha256.h"

namespace genie::test {
namespace {

Token token_of(std::uint8_t fill) {
    Token token;
    token.fill(fill);
    return token;
}

// The controller's end, in blocking steps.
class Controller {
  public:
    explicit Controller(Descriptor socket) : socket_(std::move(socket)) {}

    void send(const std::vector<std::uint8_t>& frame) {
        CHECK(::send(socket_.get(), frame.data(), frame.size(), MSG_NOSIGNAL) ==
              static_cast<ssize_t>(frame.size()));
    }

    // The next frame that is not PROGRESS; empty at end of file.
    std::pair<ControlType, std::vector<std::uint8_t>> next() {
        for (;;) {
            std::uint8_t head[8];
            if (!read(head, sizeof head)) return {ControlType{0}, {}};
            std::uint32_t size;
            std::uint16_t type;
            std::memcpy(&size, head, sizeof size);
            std::memcpy(&type, head + 4, sizeof type);
            std::vector<std::uint8_t> payload(size);
            if (size > 0 && !read(payload.data(), size)) return {ControlType{0}, {}};
            if (static_cast<ControlType>(type) != ControlType::kProgress) {
                return {static_cast<ControlType>(type), payload};
            }
        }
    }

    std::vector<std::uint8_t> expect(ControlType type) {
        auto [found, payload] = next();
        CHECK(found == type);
        return payload;
    }

    void greet(const Token& token) {
        const auto hello = expect(ControlType::kHello);
        FieldReader fields(hello);
        CHECK(fields.text() == "h0");
        const auto nonce_a = fields.raw(32);
        const std::vector<std::uint8_t> nonce_c(32, 5);
        send(FrameWriter(ControlType::kChallenge)
                 .raw(nonce_c)
                 .raw(keyed(token, "genie-controller", nonce_a, nonce_c))
                 .finish());
        const auto proof = expect(ControlType::kProof);
        const Digest expected = keyed(token, "genie-agent", nonce_c, nonce_a);
        CHECK(std::equal(proof.begin(), proof.end(), expected.begin(), expected.end()));
    }

    void close() { socket_.reset(); }

  private:
    static Digest keyed(const Token& token, std::string_view label, std::span<const std::uint8_t> a,
                        std::span<const std::uint8_t> b) {
        std::vector<std::uint8_t> message(label.begin(), label.end());
        message.insert(message.end(), a.begin(), a.end());
        message.insert(message.end(), b.begin(), b.end());
        return hmac_sha256(token, message);
    }

    bool read(std::uint8_t* into, std::size_t size) {
        while (size > 0) {
            const ssize_t count = ::recv(socket_.get(), into, size, 0);
            if (count <= 0) return false;
            into += count;
            size -= static_cast<std::size_t>(count);
        }
        return true;
    }

    Descriptor socket_;
};

// An agent on a thread; `error` is what it threw.
class AgentThread {
  public:
    AgentThread() : pair_(make_pair()), controller(Descriptor(pair_[1])) {
        thread_ = std::thread([this] {
            Agent agent(
                Descriptor(pair_[0]), "h0", token_of(9), [](const std::string&) {}, false);
            try {
                agent.serve();
            } catch (const ControlError& failure) {
                error = failure.what();
            }
        });
    }
    ~AgentThread() { join(); }
    void join() {
        controller.close();
        if (thread_.joinable()) thread_.join();
    }

  private:
    static std::array<int, 2> make_pair() {
        int pair[2];
        CHECK(::socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
        return {pair[0], pair[1]};
    }
    std::array<int, 2> pair_;
    std::thread thread_;

  public:
    Controller controller;
    std::string error;
};

std::vector<std::uint8_t> program_frame(std::uint32_t rank, const std::string& path,
                                        const std::vector<std::byte>& blob) {
    return FrameWriter(ControlType::kProgram)
        .put(rank)
        .text(path)
        .put(static_cast<std::uint32_t>(blob.size()))
        .raw({reinterpret_cast<const std::uint8_t*>(blob.data()), blob.size()})
        .finish();
}

TEST_CASE("a whole run: programs, connecting, clock, start, done, bye") {
    AgentThread agent;
    Controller& controller = agent.controller;
    controller.greet(token_of(9));
    for (std::uint32_t r = 0; r < 2; ++r) {
        ProgramBuilder builder(r, 2);
        builder.header.event_capacity = 100;
        builder.call(1, builder.make_template(ring_all_reduce(r, 2)), 100'000);
        controller.send(program_frame(r, "genie-control-" + std::to_string(r) + ".evt", builder.blob()));
    }
    std::uint16_t ports[2] = {};
    for (int i = 0; i < 2; ++i) {
        const auto payload = controller.expect(ControlType::kListening);
        FieldReader fields(payload);
        const auto rank = fields.take<std::uint32_t>();
        ports[rank] = fields.take<std::uint16_t>();
    }
    FrameWriter connect(ControlType::kConnect);
    connect.put(std::uint32_t{2});
    for (std::uint32_t r = 0; r < 2; ++r)
        connect.put(r)
            .put(std::uint32_t{0x7f000001})
            .put(ports[r])
            .put(std::uint16_t{0})
            .put(std::uint32_t{0});
    controller.send(connect.finish());
    controller.expect(ControlType::kConnected);
    controller.expect(ControlType::kConnected);
    controller.send(FrameWriter(ControlType::kPing).put(std::uint64_t{42}).finish());
    const auto pong = controller.expect(ControlType::kPong);
    FieldReader fields(pong);
    CHECK(fields.take<std::uint64_t>() == 42);
    CHECK(std::abs(fields.take<std::int64_t>() - monotonic_now().value) < 5'000'000'000);
    controller.send(FrameWriter(ControlType::kStart).put((monotonic_now() + 10_ms).value).finish());
    for (int i = 0; i < 2; ++i) {
        const auto payload = controller.expect(ControlType::kDone);
        FieldReader done(payload);
        done.take<std::uint32_t>();
        CHECK(done.take<std::uint32_t>() == 0);
    }
    controller.send(FrameWriter(ControlType::kBye).finish());
    CHECK(controller.next().first == ControlType{0});
    agent.join();
    CHECK(agent.error == "");
    std::remove("genie-control-0.evt");
    std::remove("genie-control-1.evt");
}

TEST_CASE("a bad program is told at once") {
    AgentThread agent;
    agent.controller.greet(token_of(9));
    agent.controller.send(program_frame(0, "unused.evt", std::vector<std::byte>(300)));
    const auto payload = agent.controller.expect(ControlType::kFailed);
    FieldReader fields(payload);
    CHECK(fields.take<std::uint32_t>() == 0);
    CHECK(fields.take<std::uint32_t>() == static_cast<std::uint32_t>(Code::kProtocol));
    agent.controller.expect(ControlType::kDone);
}

TEST_CASE("an abort while connecting ends the rank as aborted") {
    AgentThread agent;
    agent.controller.greet(token_of(9));
    ProgramBuilder builder(0, 2);
    builder.call(1, builder.make_template(ring_all_reduce(0, 2)), 100);
    agent.controller.send(program_frame(0, "genie-abort.evt", builder.blob()));
    agent.controller.expect(ControlType::kListening);
    agent.controller.send(FrameWriter(ControlType::kConnect).put(std::uint32_t{0}).finish());
    agent.controller.send(FrameWriter(ControlType::kAbort).text("enough").finish());
    const auto payload = agent.controller.expect(ControlType::kFailed);
    FieldReader fields(payload);
    fields.take<std::uint32_t>();
    CHECK(fields.take<std::uint32_t>() == static_cast<std::uint32_t>(Code::kAborted));
    const auto done = agent.controller.expect(ControlType::kDone);
    CHECK(done[4] == 2);
    std::remove("genie-abort.evt");
}

TEST_CASE("a controller without the token is left") {
    AgentThread agent;
    const auto hello = agent.controller.expect(ControlType::kHello);
    agent.controller.send(
        FrameWriter(ControlType::kChallenge).raw(std::vector<std::uint8_t>(64, 1)).finish());
    CHECK(agent.controller.next().first == ControlType{0});
    agent.join();
    CHECK(agent.error.find("lacks this run's token") != std::string::npos);
}

TEST_CASE("a controller that speaks before it has proven itself, or another version, is left") {
    for (const int row : {0, 1, 2}) {
        CAPTURE(row);
        AgentThread agent;
        agent.controller.expect(ControlType::kHello);
        auto frame = FrameWriter(row == 0 ? ControlType::kStart : ControlType::kChallenge)
                         .raw(std::vector<std::uint8_t>(8))
                         .finish();
        if (row == 1) frame[6] = 2;
        agent.controller.send(frame);
        CHECK(agent.controller.next().first == ControlType{0});
        agent.join();
        CHECK(agent.error != "");
    }
}

TEST_CASE("the end of the control connection ends the agent") {
    AgentThread agent;
    agent.controller.greet(token_of(9));
    agent.join();
    CHECK(agent.error == "the controller went away");
}

}  // namespace
}  // namespace genie::test
