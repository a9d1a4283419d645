// The two halves of a queue pair as the verbs transport uses them: work requests that wait to be posted
// together, and receives that are posted anew in batches. They know requests and counts; what a request is
// for is the transport's business.
#pragma once

#include <arpa/inet.h>
#include <infiniband/verbs.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace genie {

// What was asked of the device and what it said; a test and the log read it.
struct VerbsStats {
    std::uint64_t sends = 0;          // work requests: messages' parts and credits
    std::uint64_t doorbells = 0;      // calls of ibv_post_send
    std::uint64_t signalled = 0;      // of the sends
    std::uint64_t inlined = 0;        // of the sends
    std::uint64_t credits = 0;        // of the sends
    std::uint64_t data_first = 0;     // of the sends: plain writes, whose immediate follows in another
    std::uint64_t receives = 0;       // posted
    std::uint64_t receive_posts = 0;  // calls of ibv_post_recv
    std::uint64_t polls = 0;          // calls of ibv_poll_cq
    std::uint64_t empty_polls = 0;
    std::uint64_t completions = 0;
    std::uint64_t sleeps = 0;
};

// The 32 bits that travel with a message: a call's id, with the second bit set if the data came before in a
// write of their own; or a credit's number under the topmost bit.
struct Immediate {
    static constexpr std::uint32_t kCredit = 1U << 31;
    static constexpr std::uint32_t kMostCredit = kCredit - 1;
    static constexpr std::uint32_t kDataFirst = 1U << 30;
    static constexpr std::uint32_t kMostCall = kDataFirst - 1;

    std::uint32_t value = 0;
    bool credit = false;
    bool data_first = false;

    static std::uint32_t of_call(std::uint32_t call_id, bool data_first = false) {
        return htonl(call_id | (data_first ? kDataFirst : 0));
    }
    static std::uint32_t of_credit(std::uint64_t number) {
        return htonl(kCredit | static_cast<std::uint32_t>(number & kMostCredit));
    }
    static Immediate from(std::uint32_t network_order) {
        const std::uint32_t host = ntohl(network_order);
        if ((host & kCredit) != 0) return {host & kMostCredit, true, false};
        return {host & kMostCall, false, (host & kDataFirst) != 0};
    }
};

// Names a work request in its completion: the queue pair's place in the rank's table, and for a send its
// number.
struct WorkId {
    static constexpr std::uint64_t kReceive = std::uint64_t{1} << 63;

    bool receive = false;
    std::uint32_t queue = 0;
    std::uint32_t sequence = 0;

    std::uint64_t packed() const { return (receive ? kReceive : 0) | std::uint64_t{queue} << 32 | sequence; }
    static WorkId from(std::uint64_t packed) {
        return {(packed & kReceive) != 0, static_cast<std::uint32_t>(packed >> 32 & 0x7fffffff),
                static_cast<std::uint32_t>(packed)};
    }
};

// The bytes of a message that queue pair `index` of `count` carries when it is split among them, as NCCL
// does: all but the last parts are equal, multiples of 128 bytes; later ones may be empty.
struct Part {
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;

    static std::uint64_t stride(std::uint64_t bytes, std::uint32_t count) {
        if (count == 1) return bytes;
        const std::uint64_t each = (bytes + count - 1) / count;
        return (each + 127) / 128 * 128;
    }
    static Part of(std::uint64_t bytes, std::uint32_t index, std::uint32_t count) {
        const std::uint64_t each = stride(bytes, count);
        const std::uint64_t offset = std::min(bytes, each * index);
        return {offset, std::min(each, bytes - offset)};
    }
};

// Sends of one queue pair. `add` puts one at the end of the chain, `post` hands the chain to the device with
// one call. Only some are signalled; as completions come in order, each retires all before it.
class SendQueue {
  public:
    void set_up(std::uint32_t queue, std::uint32_t depth) {
        queue_ = queue;
        depth_ = depth;
        signal_every_ = std::max(1U, std::min(kSignalEvery, depth / 2));
        chain_.resize(std::min(depth, kLongestChain));
    }

    std::uint32_t depth() const { return depth_; }
    bool has_room(std::uint32_t requests) const { return added_ - retired_ + requests <= depth_; }
    // Requests that are not known to be complete, posted or not.
    std::uint32_t outstanding() const { return added_ - retired_; }
    // The number of the request that was added last; numbers begin at 0, and begin again after 2^32.
    std::uint32_t last() const { return added_ - 1; }
    // Whether the request of this number is complete; of two thousand million at most since then.
    bool retired(std::uint32_t number) const { return static_cast<std::int32_t>(retired_ - number) > 0; }
    bool chain_full() const { return length_ == chain_.size(); }
    bool chain_empty() const { return length_ == 0; }

    // Room for one more must be in queue and chain. The request has neither operation nor memory yet; what
    // else it says is of the one that had its place before.
    ibv_send_wr& add(ibv_sge*& piece) {
        Work& work = chain_[length_];
        ibv_send_wr& request = work.request;
        request.wr_id = WorkId{false, queue_, added_}.packed();
        request.next = nullptr;
        request.sg_list = nullptr;
        request.num_sge = 0;
        request.send_flags = 0;
        if (++unsignalled_ >= signal_every_) signal(request);
        if (length_ > 0) chain_[length_ - 1].request.next = &request;
        ++length_;
        ++added_;
        piece = &work.piece;
        return request;
    }

    // Hands over the chain, whose last request is always signalled; an errno, 0 if all is well.
    int post(ibv_qp* pair, VerbsStats& stats) {
        if (unsignalled_ > 0) signal(chain_[length_ - 1].request);
        stats.sends += length_;
        stats.signalled += std::exchange(signalled_, 0);
        ++stats.doorbells;
        length_ = 0;
        ibv_send_wr* refused = nullptr;
        return ::ibv_post_send(pair, &chain_[0].request, &refused);
    }

    // For tests: the chain is never posted, so it never completes.
    void drop() { length_ = 0; }

    // The request of this number is complete, so all before it are. How many that were not before.
    std::uint32_t retire(std::uint32_t sequence) {
        const std::uint32_t count = sequence + 1 - retired_;
        retired_ = sequence + 1;
        return count;
    }

  private:
    static constexpr std::uint32_t kSignalEvery = 16;
    static constexpr std::uint32_t kLongestChain = 64;

    struct Work {
        ibv_send_wr request;
        ibv_sge piece;
    };

    void signal(ibv_send_wr& request) {
        request.send_flags |= IBV_SEND_SIGNALED;
        unsignalled_ = 0;
        ++signalled_;
    }

    std::uint32_t queue_ = 0;
    std::uint32_t depth_ = 0;
    std::uint32_t signal_every_ = 1;
    std::uint32_t unsignalled_ = 0;  // requests since the last one that is
    std::uint32_t signalled_ = 0;    // in the chain
    std::uint32_t added_ = 0;
    std::uint32_t retired_ = 0;
    std::size_t length_ = 0;
    std::vector<Work> chain_;
};

// Receives of one queue pair: a ring of requests, each with a place of its own or none. Those whose messages
// are done with are owed to the device, and posted again when a batch of them is.
class ReceiveQueue {
  public:
    // Receives for `slots` messages that may come at any time, and a batch that may be owed.
    static std::uint32_t depth_for(std::uint32_t slots) { return slots + batch_for(slots); }

    void set_up(std::uint32_t queue, std::uint32_t slots) {
        batch_ = batch_for(slots);
        ring_.resize(depth_for(slots));
        pieces_.resize(ring_.size());
        for (std::size_t i = 0; i < ring_.size(); ++i) {
            ring_[i] = {};
            ring_[i].wr_id = WorkId{true, queue, 0}.packed();
        }
        owed_ = depth();
    }

    std::uint32_t depth() const { return static_cast<std::uint32_t>(ring_.size()); }

    // Where the messages that take request `index` of the ring go.
    void place(std::uint32_t index, std::uint64_t address, std::uint32_t bytes, std::uint32_t lkey) {
        pieces_[index] = {address, bytes, lkey};
        ring_[index].sg_list = &pieces_[index];
        ring_[index].num_sge = 1;
    }
    const ibv_sge& place_of(std::uint32_t index) const { return pieces_[index]; }

    // A message was taken; returns the ring's index of its request. They are taken in the order of posting.
    std::uint32_t take() { return std::exchange(taken_, taken_ + 1 == depth() ? 0 : taken_ + 1); }

    // The request taken longest ago may be used again.
    void give_back() { ++owed_; }
    bool due() const { return owed_ >= batch_; }

    // Posts all that are owed; an errno, 0 if all is well.
    int post(ibv_qp* pair, VerbsStats& stats) {
        while (owed_ > 0) {
            const std::uint32_t count = std::min(owed_, depth() - next_);
            for (std::uint32_t i = next_; i + 1 < next_ + count; ++i) ring_[i].next = &ring_[i + 1];
            ring_[next_ + count - 1].next = nullptr;
            ibv_recv_wr* refused = nullptr;
            if (const int error = ::ibv_post_recv(pair, &ring_[next_], &refused); error != 0) return error;
            stats.receives += count;
            ++stats.receive_posts;
            next_ = (next_ + count) % depth();
            owed_ -= count;
        }
        return 0;
    }

  private:
    static std::uint32_t batch_for(std::uint32_t slots) { return std::min(slots, 16U); }

    std::uint32_t batch_ = 1;
    std::uint32_t owed_ = 0;
    std::uint32_t next_ = 0;
    std::uint32_t taken_ = 0;
    std::vector<ibv_recv_wr> ring_;
    std::vector<ibv_sge> pieces_;
};

// Messages that have arrived on the queue pairs of a flow, given out in the order in which they were sent:
// message i went by queue pair i mod n, or in parts by all of them.
class Arrivals {
  public:
    struct Arrival {
        std::uint32_t call_id = 0;
        std::uint32_t bytes = 0;
        std::uint32_t request = 0;  // of the receive ring
        bool data_first = false;    // its bytes came before, in a write that says no size
    };

    void set_up(std::uint32_t queues, std::uint32_t slots, bool split) {
        split_ = split;
        slots_ = slots;
        lanes_.assign(queues, {});
        for (Lane& lane : lanes_) lane.ring.resize(slots);
    }

    // False: more than the receiver allowed.
    bool put(std::uint32_t queue, const Arrival& arrival) {
        Lane& lane = lanes_[queue];
        if (lane.held == slots_) return false;
        const std::uint32_t place = lane.taken + lane.held++;
        lane.ring[place < slots_ ? place : place - slots_] = arrival;
        return true;
    }

    // Whether the next message is here whole.
    bool ready() const {
        if (!split_) return lanes_[next_].held > 0;
        return std::all_of(lanes_.begin(), lanes_.end(), [](const Lane& lane) { return lane.held > 0; });
    }

    // The queue pairs that the next message comes on: [first, first + count).
    std::uint32_t first_queue() const { return next_; }
    std::uint32_t queue_count() const { return split_ ? static_cast<std::uint32_t>(lanes_.size()) : 1; }

    // The next message, which is ready, or the part of it that came on one of its queue pairs.
    const Arrival& front(std::uint32_t queue) const { return lanes_[queue].ring[lanes_[queue].taken]; }

    // Goes on to the message after it.
    void pop() {
        for (std::uint32_t i = next_; i < next_ + queue_count(); ++i) {
            --lanes_[i].held;
            step(lanes_[i].taken, slots_);
        }
        if (!split_) step(next_, static_cast<std::uint32_t>(lanes_.size()));
    }

  private:
    struct Lane {
        std::uint32_t taken = 0;  // the place of the first that is held
        std::uint32_t held = 0;
        std::vector<Arrival> ring;
    };

    static void step(std::uint32_t& place, std::uint32_t count) {
        if (++place == count) place = 0;
    }

    bool split_ = false;
    std::uint32_t slots_ = 0;
    std::uint32_t next_ = 0;  // not split: the queue pair of the next message
    std::vector<Lane> lanes_;
};

}  // namespace genie
