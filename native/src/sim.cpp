#include "sim.h"

#include <algorithm>
#include <memory>
#include <queue>
#include <string>
#include <tuple>

#include "events.h"
#include "rank.h"

namespace genie {
namespace {

constexpr std::uint64_t kHeaderBytes = sizeof(Frame);

class World;

struct VirtualClock {
    Nanos time{0};
    Nanos now() const { return time; }
};

// The transport of one rank; the world moves its frames.
class SimTransport {
  public:
    SimTransport(World& world, std::uint32_t rank, std::size_t connections)
        : world_(world), rank_(rank), sending_(connections, false) {}

    bool poll(Sink&, Nanos) { return false; }
    bool pending() const { return false; }
    bool busy(std::uint32_t connection) const { return sending_[connection]; }
    bool send(std::uint32_t connection, const Frame& frame, SendTimes& times);
    void send_credit(std::uint32_t connection, std::uint64_t messages);
    bool drained() const { return unsent_ == 0; }
    std::uint64_t moved() const { return moved_; }

    void sent(std::uint32_t connection) {
        sending_[connection] = false;
        --unsent_;
    }
    void count() { ++moved_; }

  private:
    World& world_;
    const std::uint32_t rank_;
    std::vector<bool> sending_;
    std::uint32_t unsent_ = 0;
    std::uint64_t moved_ = 0;
};

using SimulatedRank = Rank<VirtualClock, SimTransport>;

enum class Kind { kWake, kSent, kFirstBit, kArrived };

struct Happening {
    Nanos at;
    std::uint64_t order;  // ties are broken by who was first, so that a run can be repeated
    Kind kind;
    std::uint32_t rank;
    std::uint32_t connection;
    SendTimes times;
    Frame frame;
    friend bool operator>(const Happening& a, const Happening& b) {
        return std::tie(a.at, a.order) > std::tie(b.at, b.order);
    }
};

class World {
  public:
    World(const std::vector<Program>& programs, const SimNetwork& network)
        : programs_(programs), network_(network) {
        const std::size_t world = programs.size();
        if (network.rank_rate_bps.size() != world) throw BadProgram("expected a rate for each rank");
        egress_free_.assign(world, 0_ns);
        ingress_free_.assign(world, 0_ns);
        wake_.assign(world, Nanos::never());
        for (std::uint32_t r = 0; r < world; ++r) {
            if (programs[r].header.rank != r || programs[r].header.world != world) {
                throw BadProgram("program " + std::to_string(r) + " is of rank " +
                                 std::to_string(programs[r].header.rank) + " of " +
                                 std::to_string(programs[r].header.world));
            }
            find_other_ends(r);
        }
        for (std::uint32_t r = 0; r < world; ++r) {
            transports_.push_back(std::make_unique<SimTransport>(*this, r, programs[r].connections.size()));
            events_.push_back(std::make_unique<EventFile>("", r, static_cast<std::uint32_t>(world), 0));
            ranks_.push_back(
                std::make_unique<SimulatedRank>(programs[r], *events_[r], clock_, *transports_[r]));
        }
        results_.resize(world);
    }

    std::vector<SimRank> run() {
        for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
            ranks_[r]->begin(0_ns);
            advance(r);
        }
        while (!queue_.empty()) {
            const Happening next = queue_.top();
            queue_.pop();
            clock_.time = next.at;
            happen(next);
        }
        for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
            results_[r].failure = ranks_[r]->failure();
            results_[r].bytes_sent = events_[r]->header().bytes_sent.load();
        }
        return std::move(results_);
    }

    Nanos now() const { return clock_.time; }

    // Puts a frame on the wire of `rank`; returns when its last bit has left.
    void transmit(std::uint32_t rank, std::uint32_t connection, const Frame& frame, bool tell) {
        const Nanos start = std::max(clock_.time, egress_free_[rank]);
        const Nanos end = start + serialization(rank, frame);
        egress_free_[rank] = end;
        const std::uint32_t peer = programs_[rank].connections[connection].peer;
        if (tell) push({end, 0, Kind::kSent, rank, connection, {start, end}, frame});
        const Nanos first = saturating_add(start, network_.latency);
        push({first, 0, Kind::kFirstBit, peer, other_end_[rank][connection], {start, end}, frame});
    }

  private:
    void find_other_ends(std::uint32_t rank) {
        std::vector<std::uint32_t>& ends = other_end_.emplace_back();
        for (const Connection& connection : programs_[rank].connections) {
            const std::vector<Connection>& theirs = programs_[connection.peer].connections;
            const auto found = std::find_if(theirs.begin(), theirs.end(), [&](const Connection& other) {
                return other.peer == rank && other.channel == connection.channel;
            });
            if (found == theirs.end()) {
                throw BadProgram("rank " + std::to_string(rank) + " has a connection to rank " +
                                 std::to_string(connection.peer) + " on channel " +
                                 std::to_string(connection.channel) + " that the other side lacks");
            }
            ends.push_back(static_cast<std::uint32_t>(found - theirs.begin()));
        }
    }

    Nanos serialization(std::uint32_t rank, const Frame& frame) const {
        const std::uint64_t rate = network_.rank_rate_bps[rank];
        if (rate == 0) return network_.overhead;
        const std::uint64_t bytes = kHeaderBytes + (frame.type == FrameType::kData ? frame.bytes : 0);
        const auto bits = static_cast<Wide>(bytes) * 8 * 1'000'000'000;
        return network_.overhead + Nanos{static_cast<std::int64_t>((bits + rate - 1) / rate)};
    }

    void push(Happening happening) {
        happening.order = ++order_;
        queue_.push(happening);
    }

    void happen(const Happening& next) {
        const std::uint32_t r = next.rank;
        SimulatedRank& rank = *ranks_[r];
        switch (next.kind) {
            case Kind::kWake:
                if (next.at == wake_[r]) wake_[r] = Nanos::never();
                break;
            case Kind::kSent:
                transports_[r]->sent(next.connection);
                transports_[r]->count();
                if (rank.running()) rank.on_sent(next.connection, next.times);
                break;
            case Kind::kFirstBit: {
                // The last bit is here when the slower of both ends is through with it.
                const Nanos start = std::max(next.at, ingress_free_[r]);
                const Nanos end = std::max(start + serialization(r, next.frame),
                                           saturating_add(next.times.last, network_.latency));
                ingress_free_[r] = end;
                Happening arrival = next;
                arrival.kind = Kind::kArrived;
                arrival.at = end;
                push(arrival);
                return;
            }
            case Kind::kArrived:
                transports_[r]->count();
                if (!rank.running()) break;
                if (next.frame.type == FrameType::kCredit) {
                    rank.on_credit(next.connection, next.frame.bytes, next.at);
                } else if (rank.on_header(next.connection, next.frame, next.at)) {
                    rank.on_message(next.connection, next.at);
                }
                break;
        }
        advance(r);
    }

    void advance(std::uint32_t r) {
        SimulatedRank& rank = *ranks_[r];
        Wait wait;
        do {
            wait = rank.advance(clock_.time);
            auto& ends = results_[r].iteration_end_ns;
            while (ends.size() < rank.iteration()) ends.push_back(clock_.time.value);
        } while (wait.more);
        // An earlier wake is as good: it looks again.
        if (rank.running() && wait.deadline < wake_[r]) {
            wake_[r] = wait.deadline;
            push({wait.deadline, 0, Kind::kWake, r, 0, {}, {}});
        }
    }

    const std::vector<Program>& programs_;
    const SimNetwork& network_;
    VirtualClock clock_;
    std::uint64_t order_ = 0;
    std::vector<std::vector<std::uint32_t>> other_end_;
    std::vector<Nanos> egress_free_;
    std::vector<Nanos> ingress_free_;
    std::vector<Nanos> wake_;  // the earliest wake on its way to each rank
    std::vector<std::unique_ptr<SimTransport>> transports_;
    std::vector<std::unique_ptr<EventFile>> events_;
    std::vector<std::unique_ptr<SimulatedRank>> ranks_;
    std::vector<SimRank> results_;
    std::priority_queue<Happening, std::vector<Happening>, std::greater<>> queue_;
};

bool SimTransport::send(std::uint32_t connection, const Frame& frame, SendTimes&) {
    sending_[connection] = true;
    ++unsent_;
    world_.transmit(rank_, connection, frame, true);
    return false;
}

void SimTransport::send_credit(std::uint32_t connection, std::uint64_t messages) {
    Frame frame;
    frame.type = FrameType::kCredit;
    frame.bytes = messages;
    world_.transmit(rank_, connection, frame, false);
}

}  // namespace

std::vector<SimRank> simulate(const std::vector<Program>& programs, const SimNetwork& network) {
    return World(programs, network).run();
}

}  // namespace genie
