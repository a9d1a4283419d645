// Frames over libfabric: tagged messages between reliable-datagram endpoints, one a rank, over whatever
// provider is asked for.
//
// A message is the payload and nothing else, as NCCL's plugin for libfabric sends it: its tag says which
// connection of the receiver it is for, its 32 bits of completion data the call. The rest of the head is what
// the receiver expects next there. That takes 48 bits of tag and 4 bytes of data, which all providers have.
//
// Receives are posted before they are needed, `slots` a connection, and a peer sends no more than it knows to
// be posted; it is told by empty messages (credits). So nothing but those is ever unexpected. Completions may
// come in any order; messages are handed on in the order of their connection.
//
// Payload lies in one region that is never looked at; with the program's verify flag each message in flight
// has a place in it. Setting up may block and throws Failure; afterwards nothing blocks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ofi_endpoint.h"
#include "program.h"
#include "runner.h"
#include "sha256.h"
#include "sockets.h"
#include "transport.h"

namespace genie {

class OfiTransport {
  public:
    explicit OfiTransport(const RankContext& context);
    OfiTransport(const OfiTransport&) = delete;
    OfiTransport& operator=(const OfiTransport&) = delete;
    // The endpoint goes first: until then what is posted is the provider's, payload and operations.
    ~OfiTransport();

    Opened open();
    // Greets all peers: the run's token is proved both ways, and connections below are made by that.
    void connect_all(const std::vector<Endpoint>& endpoints, const std::function<bool()>& stopped);

    void gather(Nanos now, Nanos until);
    bool gathered() const { return gathered_ > 0 || trouble_.has_value(); }

    bool poll(Sink& sink, Nanos now);
    bool pending() const { return false; }
    bool busy(std::uint32_t connection) const { return peers_[connection].sending; }
    bool send(std::uint32_t connection, const Frame& frame, SendTimes& times);
    void send_credit(std::uint32_t connection, std::uint64_t messages);
    bool drained() const { return posted_ == 0 && unsent_ == 0; }
    std::uint64_t moved() const { return moved_; }
    // Keeps the provider going, for what it still has to do for peers.
    void tend();

    // For tests. libfabric cannot cut one connection of many: this rank acts as if it had.
    void break_connection(std::uint32_t connection);

  private:
    enum class Kind : std::uint8_t { kGreeting, kData, kCredit };

    // Something posted. The provider keeps its own notes in the first field.
    struct Operation {
        fi_context2 context{};
        Kind kind = Kind::kData;
        bool is_send = false;
        bool posted = false;
        std::uint32_t connection = 0;
        std::uint32_t slot = 0;
        std::uint32_t call_id = 0;
        std::uint64_t bytes = 0;
    };

    // What each end of a connection sends first, the higher rank before the lower.
    struct Greeting {
        std::uint8_t run_id[16];
        std::uint32_t from;
        std::uint32_t to;
        std::uint32_t channel;
        std::uint32_t connection;  // of the sender: goes into the tags of what it is sent
        std::uint32_t slots;       // receives that it has posted
        std::uint32_t zero;
        std::uint8_t proof[32];
    };
    static_assert(sizeof(Greeting) == 72);

    struct Peer {
        fi_addr_t address = FI_ADDR_UNSPEC;
        std::uint32_t theirs = 0;  // the peer's number of this connection
        std::uint32_t slots = 0;   // the peer's
        bool lost = false;
        // Receiving. Message n comes into slot n % slots.
        std::vector<Operation> receives;
        std::vector<Operation> credit_receives;
        std::uint64_t received = 0;
        std::uint64_t credited = 0;
        Operation credit;
        bool credit_due = false;
        // Sending. A slot is free again once its message was sent; `room` is what the peer takes so far.
        std::vector<Operation> sends;
        std::uint64_t sent = 0;
        std::uint64_t room = 0;
        bool sending = false;
        bool stalled = false;  // the provider took no more; among stalled_
        Frame frame;
        SendTimes times{};
        // Setting up.
        Operation greeting;
        Operation greeting_receive;
        bool greeted = false;   // the peer has
        bool answered = false;  // we have
        Nanos greet_at;         // when to, if not yet
        std::string trouble = "it did not greet";
    };

    // An endpoint that is never closed, with what its provider may still look at.
    struct Abandoned {
        std::unique_ptr<OfiEndpoint> endpoint;
        std::unique_ptr<OfiMemory> memory;
        std::vector<Peer> peers;
    };
    static std::vector<Abandoned>& abandoned();

    // These post. False: not now, `poll` tries again. What cannot be posted ever makes the connection fail.
    bool post_message(std::uint32_t connection);
    bool post_credit(std::uint32_t connection);
    bool post_send(std::uint32_t connection, Operation& operation, const void* data, std::uint32_t note,
                   std::uint64_t tag);
    void post_receive(std::uint32_t connection, Operation& operation, std::uint64_t tag, void* data,
                      std::size_t bytes);
    void post_data_receive(std::uint32_t connection, std::uint32_t slot);
    void post_credit_receive(std::uint32_t connection, std::uint32_t slot);

    void read();
    void read_error();
    void fail(std::uint32_t connection, Code code, std::string text);
    std::string who(std::uint32_t connection) const;

    void complete(const fi_cq_tagged_entry& entry, Sink& sink);
    void deliver(std::uint32_t connection, Sink& sink);
    bool verified(std::uint32_t connection, const Operation& operation, const Frame& frame, Sink& sink);
    void take_credit(std::uint32_t connection, std::uint32_t count, Sink& sink);
    void try_again(std::uint32_t connection, Sink& sink);

    void prepare(const std::vector<Endpoint>& endpoints);
    void greet(std::uint32_t connection);
    void greeted(std::uint32_t connection, std::size_t bytes);
    Digest prove(const Greeting& greeting) const;
    Greeting* greeting_at(std::uint32_t connection, bool own) const;

    std::uint8_t* payload(bool is_send, std::uint32_t connection, std::uint32_t slot) const;

    const Program& program_;
    const Token token_;
    const int stop_fd_;
    const Log log_;
    const bool verify_;
    std::uint32_t slots_ = 0;
    std::size_t send_bytes_;  // of the longest message
    std::size_t receive_bytes_;
    std::size_t greetings_bytes_ = 0;
    std::string provider_;
    std::string domain_;
    std::unique_ptr<OfiEndpoint> endpoint_;
    std::unique_ptr<OfiMemory> memory_;
    std::vector<Peer> peers_;
    std::array<fi_cq_tagged_entry, 64> entries_{};
    std::size_t gathered_ = 0;
    struct Trouble {
        std::uint32_t connection;
        Code code;
        std::string text;
    };
    std::optional<Trouble> trouble_;  // the first one, until `poll` has told of it
    std::vector<std::uint32_t> stalled_;
    std::uint64_t posted_ = 0;  // sends whose completion is not there yet
    std::uint64_t unsent_ = 0;  // frames and credits that are not yet posted
    std::uint64_t moved_ = 0;
};

}  // namespace genie
