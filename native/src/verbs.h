// Messages over RDMA (libibverbs), one RDMA write with immediate data each, as NCCL sends them.
//
// On the wire a message is its payload and 32 bits with the call's id: matching is static, so the receiver
// knows what is due (`Sink::expect`) and the completion tells the true size. Each connection has for each
// direction that carries data a *flow*: queue pairs of its own on which data go one way and credits the
// other. A receiver lets a sender be `slots` messages ahead; each `credit_every` messages it writes a credit
// of 64 bytes. Work requests gather while the rank advances and are posted together, before it waits.
//
// All memory is one registered region. Payload is never looked at, and all of it goes from one place to one
// place; with the program's verify flag a message in flight has a slot for itself at both ends, in which its
// pattern is made and checked. See docs/transport-verbs.md.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "program.h"
#include "runner.h"
#include "transport.h"
#include "verbs_endpoint.h"
#include "verbs_queue.h"

namespace genie {

class VerbsTransport {
  public:
    explicit VerbsTransport(const RankContext& context);
    // With a library of the caller's, which outlives it: for tests.
    VerbsTransport(const RankContext& context, const VerbsLibrary& library);
    ~VerbsTransport();

    Opened open();
    void connect_all(const std::vector<Endpoint>& endpoints, const std::function<bool()>& stopped);

    void gather(Nanos now, Nanos until);
    bool gathered() const { return gathered_count_ > 0 || !troubles_.empty(); }

    // -- as Rank wants it

    bool poll(Sink& sink, Nanos now);
    bool pending() const { return pending_; }
    bool busy(std::uint32_t connection) const;
    bool send(std::uint32_t connection, const Frame& frame, SendTimes& times);
    void send_credit(std::uint32_t connection, std::uint64_t messages);
    // At a stall: requests that nobody acknowledged, and when the device will say so.
    std::string unfinished() const;
    bool drained() const;
    std::uint64_t moved() const { return moved_; }

    // For tests: the queue pairs of a connection fall silent, as if the network had cut them.
    void break_connection(std::uint32_t connection);

    const VerbsStats& stats() const { return stats_; }

  private:
    // What a receiver writes into a ring at the sender, a line of a cache each.
    struct Credit {
        std::uint64_t number = 0;
        std::uint64_t granted = 0;        // messages that the sender may have sent in all
        std::uint64_t rank_messages = 0;  // what the rank said with send_credit
        std::uint8_t zero[40] = {};
    };
    static_assert(sizeof(Credit) == 64);

    static constexpr std::uint64_t kNever = ~std::uint64_t{0};

    struct Queue {
        std::uint32_t flow = 0;
        VerbsHandle<ibv_qp> pair;
        VerbsQueuePair own;
        VerbsQueuePair remote;
        SendQueue sends;
        ReceiveQueue receives;
        // With the verify flag: of each slot, the request that sent from it last.
        std::vector<std::uint32_t> last_of_slot;
        bool dirty = false;  // in dirty_
        bool silent = false;
    };

    // One direction of a connection. Places are of the region, addresses those the peer gave.
    struct Flow {
        std::uint32_t connection = 0;
        bool sends = false;
        std::uint32_t first_queue = 0;
        std::uint64_t message_bytes = 0;  // the longest
        std::uint8_t* slots = nullptr;    // where messages are, here
        std::uint64_t slot_bytes = 0;     // between them; 0: all in one place
        std::uint8_t* ring = nullptr;     // of credits: read here, or sent from here
        std::uint64_t remote_address = 0;
        std::uint64_t remote_stride = 0;
        std::uint32_t remote_rkey = 0;
        GidBytes remote_gid{};
        bool lost = false;
        // Of one that sends.
        std::uint64_t sent = 0;
        std::uint32_t next_slot = 0;   // sent % slots
        std::uint32_t next_queue = 0;  // sent % queue pairs, where they take turns
        std::uint64_t granted = 0;
        std::uint64_t credits_seen = 0;
        std::uint64_t rank_messages_seen = 0;
        mutable bool blocked = false;  // `busy` has said so, and `on_free` has not been called yet
        // Of one that receives.
        Arrivals arrivals;
        std::uint64_t delivered = 0;
        std::uint64_t told = 0;  // `delivered` in the last credit
        std::uint64_t credits_sent = 0;
        std::uint64_t rank_messages = 0;
        bool due = false;  // in due_: a credit must go out
    };

    struct Ends {
        std::uint32_t out = kNone;
        std::uint32_t in = kNone;
    };

    struct Trouble {
        std::uint32_t flow;  // kNone: of the whole device
        std::string text;
    };

    void plan_flows();
    void place_flows();
    void make_queues();
    void connect_flow(Flow& flow, const VerbsCard& card);
    VerbsCard card() const;
    std::string used() const;  // see Opened
    std::string gid_why() const;
    void require_same(const VerbsCard& card, std::uint32_t rank) const;

    bool look();
    bool keep_for_rank(const ibv_wc& completion);
    void spin(Nanos now, Nanos until);
    void sleep(Nanos now, Nanos until);
    bool stop_wanted() const;
    void look_for_events();
    void note_event(const ibv_async_event& event);

    bool sendable(const Flow& flow) const;
    bool takes_next(const Flow& flow, const Queue& queue) const;
    std::uint32_t send_depth(const Flow& flow) const {
        return 2 * settings_.slots * (flow.sends ? requests_a_part_ : 1);
    }
    void add_part(Queue& queue, const Flow& flow, std::uint32_t call_id, std::uint64_t slot, Part part,
                  const std::uint8_t* source, bool data_first);
    ibv_send_wr& add_request(Queue& queue, const Flow& flow, std::uint64_t slot, Part part,
                             const std::uint8_t* source);
    bool credit_room(const Flow& flow) const;
    void add_credit(Flow& flow);
    void mark(Queue& queue);
    void post(Queue& queue);
    void post_receives(Queue& queue);
    // Posts all that has gathered, a call for each queue pair.
    void flush() {
        if (!due_.empty() || !dirty_.empty()) post_gathered();
    }
    void post_gathered();

    bool handle(const ibv_wc& completion, Nanos now, Sink& sink);
    bool take_data(Queue& queue, const ibv_wc& completion, Nanos now, Sink& sink);
    bool take_credit(Queue& queue, const ibv_wc& completion, Nanos now, Sink& sink);
    bool deliver(Flow& flow, Nanos now, Sink& sink);
    bool refuse_parts(Flow& flow, const Arrivals::Arrival& one, const Arrivals::Arrival& other, Sink& sink);
    bool refuse_data_first(Flow& flow, const Frame& frame, std::uint64_t due_bytes, Sink& sink);
    bool same_pattern(Flow& flow, const Frame& frame, Sink& sink);
    void free_if_sendable(Flow& flow, Sink& sink);
    void lose(Flow& flow, Sink& sink, Code code, const std::string& text);
    void tell_troubles(Sink& sink);
    std::string describe(const Flow& flow, const Queue& queue) const;
    std::uint32_t peer_of(const Flow& flow) const { return program_.connections[flow.connection].peer; }

    const Program& program_;
    const VerbsLibrary& library_;
    const int stop_fd_;
    const Log log_;
    const VerbsSettings settings_;
    const bool verify_;
    const std::uint32_t credit_ring_;  // credits in a ring: a sender has never more of them unread
    std::uint64_t message_bytes_ = 0;  // the longest
    // Longer messages go as a plain write, and an empty write with their immediate after it.
    std::uint64_t data_first_above_ = kNever;
    std::uint32_t requests_a_part_ = 1;  // at most

    std::optional<VerbsEndpoint> endpoint_;
    std::uint8_t* source_ = nullptr;
    std::uint8_t* sink_ = nullptr;
    std::vector<Flow> flows_;
    std::vector<Ends> ends_;  // of each connection
    std::vector<Queue> queues_;

    std::vector<std::uint32_t> dirty_;  // queues with requests to post
    std::vector<std::uint32_t> due_;    // flows with a credit to send
    std::array<ibv_wc, 32> gathered_{};
    int gathered_count_ = 0;
    bool full_ = false;  // the last look filled gathered_: there may be more
    bool pending_ = false;
    bool armed_ = false;
    std::uint64_t outstanding_ = 0;  // work requests not known to be complete
    mutable bool draining_ = false;  // `drained` was asked in vain: the last completion matters to the rank
    bool last_found_ = false;        // the completion that is looked at is the last one gathered
    // When the completion was found that is looked at first, 0 at other times: a look at the clock for the
    // answer to it would take a tenth of what all the rest does.
    Nanos just_now_;
    std::uint64_t moved_ = 0;
    Nanos events_seen_;
    std::string port_note_;  // the last thing that happened to the port
    std::vector<Trouble> troubles_;
    VerbsStats stats_;
};

}  // namespace genie
