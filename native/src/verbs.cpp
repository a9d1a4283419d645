#include "verbs.h"

#include <poll.h>
#include <sched.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "driver.h"
#include "pattern.h"
#include "verbs_error.h"

namespace genie {
namespace {

constexpr Nanos kEventsEvery = 10_ms;  // a rank that does not sleep looks for events of its device so often
constexpr unsigned kSpinsAtOnce = 64;  // then it looks at the clock and lets others run
constexpr int kMostBatches = 16;       // of completions in one `poll`

std::uint64_t aligned(std::uint64_t bytes) { return (bytes + 63) / 64 * 64; }

std::uint32_t random_psn() {
    std::uint32_t number = 0;
    if (::getrandom(&number, sizeof number, 0) != static_cast<ssize_t>(sizeof number))
        fail_errno(Code::kInternal, "cannot draw a random number");
    return number & 0xffffff;
}

}  // namespace

VerbsTransport::VerbsTransport(const RankContext& context) : VerbsTransport(context, verbs_library()) {}

VerbsTransport::VerbsTransport(const RankContext& context, const VerbsLibrary& library)
    : program_(context.program),
      library_(library),
      stop_fd_(context.stop_fd),
      log_(context.log),
      settings_(VerbsSettings::parse(program_)),
      verify_(program_.verify()),
      credit_ring_(settings_.slots),
      ends_(program_.connections.size()) {}

VerbsTransport::~VerbsTransport() {
    if (!log_ || stats_.doorbells == 0) return;
    log_(std::to_string(stats_.sends) + " sends (" + std::to_string(stats_.credits) +
         " of them credits) in " + std::to_string(stats_.doorbells) + " doorbells, " +
         std::to_string(stats_.completions) + " completions in " + std::to_string(stats_.polls) + " polls (" +
         std::to_string(stats_.empty_polls) + " empty), " + std::to_string(stats_.sleeps) + " sleeps");
}

// -- setting up

Opened VerbsTransport::open() {
    plan_flows();
    endpoint_.emplace(library_, settings_, program_.header.listen_ipv4, program_.header.rank);
    if (message_bytes_ > endpoint_->port().attributes.max_msg_sz) {
        throw Failure(Code::kTransport, endpoint_->where() + " takes messages of up to " +
                                            std::to_string(endpoint_->port().attributes.max_msg_sz) +
                                            " bytes (max_msg_sz), a call has " +
                                            std::to_string(message_bytes_) + ": lower chunk_bytes");
    }
    place_flows();
    make_queues();
    if (log_) {
        log_(endpoint_->where() + ", GID index " + std::to_string(endpoint_->gid().index) + " " +
             gid_text(endpoint_->gid().bytes) + " (" +
             (settings_.gid_index >= 0 ? "as configured" : endpoint_->port().chosen.why) + "), MTU " +
             std::to_string(mtu_bytes(endpoint_->mtu())) + ", " + std::to_string(queues_.size()) +
             " queue pairs");
        if (endpoint_->inline_bytes() < settings_.inline_bytes) {
            log_("the device takes " + std::to_string(endpoint_->inline_bytes()) + " bytes inline, not " +
                 std::to_string(settings_.inline_bytes));
        }
    }
    return {0, card().bytes()};
}

// Which directions of which connections carry data, and how long a message gets.
void VerbsTransport::plan_flows() {
    std::vector<std::uint8_t> sends(ends_.size());
    std::vector<std::uint8_t> receives(ends_.size());
    for (const TemplatePlan& plan : program_.templates) {
        for (const PortPlan& port : plan.ports) {
            sends[port.connection] |= port.send_begin < port.send_end ? 1 : 0;
            receives[port.connection] |= port.recv_begin < port.recv_end ? 1 : 0;
        }
    }
    const auto add = [&](std::uint32_t connection, bool sending) {
        Flow& flow = flows_.emplace_back();
        flow.connection = connection;
        flow.sends = sending;
        flow.first_queue = static_cast<std::uint32_t>(flows_.size() - 1) * settings_.queue_pairs;
        return static_cast<std::uint32_t>(flows_.size() - 1);
    };
    for (std::uint32_t c = 0; c < ends_.size(); ++c) {
        if (sends[c] != 0) ends_[c].out = add(c, true);
        if (receives[c] != 0) ends_[c].in = add(c, false);
    }
    for (const Call& call : program_.calls) {
        if (call.call_id > Immediate::kMost) {
            throw Failure(Code::kTransport, "call id " + std::to_string(call.call_id) +
                                                " does not fit the 31 bits that transport verbs has for it");
        }
        const TemplatePlan& plan = program_.templates[call.template_index];
        for (std::uint32_t s = 0; s < plan.steps; ++s) {
            const Step& step = program_.steps[plan.step_begin + s];
            if (step.kind == StepKind::kLocal) continue;
            const Ends& ends = ends_[step.connection];
            Flow& flow = flows_[step.kind == StepKind::kSend ? ends.out : ends.in];
            const std::uint64_t bytes = program_.step_bytes(call, plan, step);
            flow.message_bytes =
                std::max(flow.message_bytes, std::min<std::uint64_t>(bytes, call.chunk_bytes));
            message_bytes_ = std::max(message_bytes_, flow.message_bytes);
        }
    }
    dirty_.reserve(flows_.size() * settings_.queue_pairs);
    due_.reserve(flows_.size());
    troubles_.reserve(16);
}

// Lays out the region: payload, then the rings of credits.
void VerbsTransport::place_flows() {
    const std::uint64_t slot = aligned(message_bytes_);
    const std::uint64_t slots = settings_.slots;
    const std::uint64_t ring = credit_ring_ * sizeof(Credit);
    const bool apart = settings_.mode == VerbsMode::kSend;
    // What each receive of a queue pair takes, if receives have places of their own.
    const std::uint64_t part = settings_.split ? Part::stride(message_bytes_, settings_.queue_pairs) : slot;
    const std::uint64_t receives =
        std::uint64_t{ReceiveQueue::depth_for(settings_.slots)} * settings_.queue_pairs;
    std::uint64_t payload = 2 * slot;
    if (verify_) {
        payload = 0;
        for (const Flow& flow : flows_) payload += flow.sends || !apart ? slots * slot : receives * part;
    }
    std::uint64_t completions = 0;
    const std::uint64_t send_depth = 2 * slots;
    for (const Flow& flow : flows_) {
        completions += settings_.queue_pairs *
                       (send_depth + ReceiveQueue::depth_for(flow.sends ? credit_ring_ : settings_.slots));
    }
    endpoint_->reserve(payload + flows_.size() * ring, std::max<std::uint64_t>(1, completions));
    source_ = endpoint_->memory();
    sink_ = source_ + slot;
    std::uint8_t* at = endpoint_->memory();
    for (Flow& flow : flows_) {
        flow.slots = verify_ ? at : flow.sends ? source_ : sink_;
        flow.slot_bytes = verify_ ? slot : 0;
        if (verify_) at += flow.sends || !apart ? slots * slot : receives * part;
    }
    if (!verify_) at += payload;
    for (Flow& flow : flows_) flow.ring = std::exchange(at, at + ring);
}

void VerbsTransport::make_queues() {
    queues_.resize(flows_.size() * settings_.queue_pairs);
    const std::uint32_t send_depth = 2 * settings_.slots;
    const std::uint64_t part =
        settings_.split ? Part::stride(message_bytes_, settings_.queue_pairs) : aligned(message_bytes_);
    for (std::uint32_t f = 0; f < flows_.size(); ++f) {
        Flow& flow = flows_[f];
        if (!flow.sends) flow.arrivals.set_up(settings_.queue_pairs, settings_.slots, settings_.split);
        std::uint8_t* place = flow.slots;
        for (std::uint32_t i = 0; i < settings_.queue_pairs; ++i) {
            Queue& queue = queues_[flow.first_queue + i];
            queue.flow = f;
            queue.sends.set_up(flow.first_queue + i, send_depth);
            queue.receives.set_up(flow.first_queue + i, flow.sends ? credit_ring_ : settings_.slots);
            queue.pair = endpoint_->make_queue_pair(send_depth, queue.receives.depth());
            queue.own = {queue.pair->qp_num, random_psn()};
            if (!flow.sends && settings_.mode == VerbsMode::kSend) {
                for (std::uint32_t r = 0; r < queue.receives.depth(); ++r) {
                    queue.receives.place(r, endpoint_->address_of(place), static_cast<std::uint32_t>(part),
                                         endpoint_->lkey());
                    if (verify_) place += part;
                }
            }
            post_receives(queue);
        }
    }
    if (!troubles_.empty()) throw Failure(Code::kTransport, troubles_.front().text);
}

VerbsCard VerbsTransport::card() const {
    VerbsCard card;
    card.gid = endpoint_->gid().bytes;
    card.lid = endpoint_->port().attributes.lid;
    card.link_layer = endpoint_->port().attributes.link_layer;
    card.mtu = static_cast<std::uint8_t>(endpoint_->mtu());
    card.mode = static_cast<std::uint8_t>(settings_.mode);
    card.split = settings_.split;
    card.verify = verify_;
    card.queue_pairs = settings_.queue_pairs;
    card.slots = settings_.slots;
    card.rkey = endpoint_->rkey();
    card.message_bytes = message_bytes_;
    for (const Flow& flow : flows_) {
        const Connection& connection = program_.connections[flow.connection];
        VerbsFlowCard& out = card.flows.emplace_back();
        out.peer = connection.peer;
        out.channel = connection.channel;
        out.sends = flow.sends;
        out.address = endpoint_->address_of(flow.sends ? flow.ring : flow.slots);
        out.stride_bytes = flow.sends ? sizeof(Credit) : flow.slot_bytes;
        for (std::uint32_t i = 0; i < settings_.queue_pairs; ++i)
            out.queue_pairs.push_back(queues_[flow.first_queue + i].own);
    }
    return card;
}

void VerbsTransport::require_same(const VerbsCard& theirs, std::uint32_t rank) const {
    const VerbsCard own = card();
    const auto same = [&](const char* what, std::uint64_t here, std::uint64_t there) {
        if (here == there) return;
        throw Failure(Code::kProtocol,
                      "rank " + std::to_string(rank) + " has " + what + " " + std::to_string(there) +
                          ", this rank " + std::to_string(here) + ": expected the same on all ranks",
                      rank);
    };
    same("mode (0 write, 1 send)", own.mode, theirs.mode);
    same("split", own.split ? 1 : 0, theirs.split ? 1 : 0);
    same("verify", own.verify ? 1 : 0, theirs.verify ? 1 : 0);
    same("queue pairs of a connection", own.queue_pairs, theirs.queue_pairs);
    same("slots", own.slots, theirs.slots);
    same("link layer (1 InfiniBand, 2 Ethernet)", own.link_layer, theirs.link_layer);
}

void VerbsTransport::connect_all(const std::vector<Endpoint>& endpoints,
                                 const std::function<bool()>& stopped) {
    std::vector<std::pair<std::uint32_t, VerbsCard>> cards;  // of the peers, by rank
    for (const Endpoint& endpoint : endpoints) {
        const bool peer =
            std::any_of(program_.connections.begin(), program_.connections.end(),
                        [&](const Connection& connection) { return connection.peer == endpoint.rank; });
        if (!peer) continue;
        cards.emplace_back(endpoint.rank, VerbsCard::parse(endpoint.card, endpoint.rank));
        require_same(cards.back().second, endpoint.rank);
    }
    std::sort(cards.begin(), cards.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (Flow& flow : flows_) {
        if (stopped()) throw Failure(Code::kAborted, "stopped while connecting queue pairs");
        const std::uint32_t peer = peer_of(flow);
        const auto found =
            std::lower_bound(cards.begin(), cards.end(), peer,
                             [](const auto& one, std::uint32_t rank) { return one.first < rank; });
        if (found == cards.end() || found->first != peer) {
            throw Failure(Code::kConnect, "rank " + std::to_string(peer) + " gave no RDMA card", peer);
        }
        connect_flow(flow, found->second);
    }
}

void VerbsTransport::connect_flow(Flow& flow, const VerbsCard& card) {
    const Connection& connection = program_.connections[flow.connection];
    const VerbsFlowCard* const other = card.find(program_.header.rank, connection.channel, !flow.sends);
    if (other == nullptr) {
        throw Failure(Code::kProtocol,
                      "rank " + std::to_string(connection.peer) + " has no end for what this rank " +
                          (flow.sends ? "sends to" : "receives from") + " it on channel " +
                          std::to_string(connection.channel) + ": their programs do not fit together",
                      connection.peer);
    }
    if (flow.sends && card.message_bytes < flow.message_bytes) {
        throw Failure(Code::kProtocol,
                      "rank " + std::to_string(connection.peer) + " takes messages of up to " +
                          std::to_string(card.message_bytes) + " bytes, this rank has one of " +
                          std::to_string(flow.message_bytes) + " for it: their programs do not fit together",
                      connection.peer);
    }
    flow.remote_address = other->address;
    flow.remote_stride = other->stride_bytes;
    flow.remote_rkey = card.rkey;
    flow.remote_gid = card.gid;
    flow.granted = settings_.slots;
    for (std::uint32_t i = 0; i < settings_.queue_pairs; ++i) {
        Queue& queue = queues_[flow.first_queue + i];
        queue.remote = other->queue_pairs[i];
        endpoint_->connect(queue.pair.get(), queue.own.psn, card, queue.remote, connection.peer);
    }
}

void VerbsTransport::break_connection(std::uint32_t connection) {
    for (const std::uint32_t f : {ends_[connection].out, ends_[connection].in}) {
        if (f == kNone) continue;
        for (std::uint32_t i = 0; i < settings_.queue_pairs; ++i) {
            Queue& queue = queues_[flows_[f].first_queue + i];
            queue.silent = true;
            endpoint_->silence(queue.pair.get());
        }
    }
}

// -- waiting

// Whether completions were found.
bool VerbsTransport::look() {
    const int count = endpoint_->poll(gathered_.data(), static_cast<int>(gathered_.size()));
    ++stats_.polls;
    if (count < 0) {
        troubles_.push_back({kNone, "the completion queue of " + endpoint_->where() + " cannot be read"});
        return true;
    }
    if (count == 0) ++stats_.empty_polls;
    stats_.completions += static_cast<std::uint64_t>(count);
    gathered_count_ = count;
    return count > 0;
}

void VerbsTransport::gather(Nanos now, Nanos until) {
    flush();
    if (gathered() || look()) return;
    if (now - events_seen_ > kEventsEvery) {
        events_seen_ = now;
        look_for_events();
    }
    if (until <= now || gathered()) return;
    if (settings_.completion == VerbsCompletion::kBusy) {
        spin(until);
    } else {
        sleep(now, until);
    }
}

void VerbsTransport::spin(Nanos until) {
    for (unsigned spins = 1;; ++spins) {
        if (look()) return;
        if (spins % kSpinsAtOnce != 0) {
            relax();
            continue;
        }
        const Nanos now = monotonic_now();
        if (now >= until) return;
        if (now - events_seen_ > kEventsEvery) {
            events_seen_ = now;
            look_for_events();
            if (gathered() || stop_wanted()) return;
        }
        ::sched_yield();  // costs nothing where nobody else wants this core
    }
}

void VerbsTransport::sleep(Nanos now, Nanos until) {
    if (!armed_) {
        endpoint_->arm();
        armed_ = true;
        if (look()) return;  // it may have come before
    }
    std::array<pollfd, 3> sources = {pollfd{endpoint_->channel_fd(), POLLIN, 0},
                                     pollfd{endpoint_->event_fd(), POLLIN, 0}, pollfd{stop_fd_, POLLIN, 0}};
    const std::int64_t left = until == Nanos::never() ? -1 : (until - now).value;
    const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
    ++stats_.sleeps;
    if (::ppoll(sources.data(), sources.size(), left < 0 ? nullptr : &timeout, nullptr) < 0) {
        if (errno == EINTR) return;
        fail_errno(Code::kInternal, "cannot wait for completions");
    }
    if (sources[1].revents != 0) look_for_events();
    if (sources[0].revents != 0) {
        endpoint_->take_channel_events();
        armed_ = false;
        look();
    }
}

bool VerbsTransport::stop_wanted() const {
    pollfd stop{stop_fd_, POLLIN, 0};
    return ::poll(&stop, 1, 0) > 0;
}

void VerbsTransport::look_for_events() {
    while (endpoint_->take_event([this](const ibv_async_event& event) { note_event(event); })) {
    }
}

void VerbsTransport::note_event(const ibv_async_event& event) {
    const std::string name = device_event_name(event.event_type);
    switch (event.event_type) {
        case IBV_EVENT_QP_FATAL:
        case IBV_EVENT_QP_REQ_ERR:
        case IBV_EVENT_QP_ACCESS_ERR:
            for (const Queue& queue : queues_) {
                if (queue.pair.get() != event.element.qp) continue;
                troubles_.push_back({queue.flow, name + " on " + describe(flows_[queue.flow], queue) +
                                                     ": the device stopped the queue pair"});
            }
            return;
        case IBV_EVENT_CQ_ERR:
        case IBV_EVENT_DEVICE_FATAL:
            troubles_.push_back({kNone, name + " on " + endpoint_->where() + ": the device cannot go on"});
            return;
        case IBV_EVENT_PORT_ERR:
        case IBV_EVENT_PORT_ACTIVE:
        case IBV_EVENT_LID_CHANGE:
        case IBV_EVENT_GID_CHANGE:
        case IBV_EVENT_PKEY_CHANGE:
            // No end: a link that comes back within the retries is as good as new.
            port_note_ = name + " on " + endpoint_->where();
            if (log_) log_(port_note_);
            return;
        default:
            return;
    }
}

// -- sending

bool VerbsTransport::sendable(const Flow& flow) const {
    if (flow.sent >= flow.granted) return false;
    const std::uint32_t count = settings_.queue_pairs;
    // The slot is free once the message that had it last is complete, not only received.
    const bool reused = verify_ && flow.sent >= settings_.slots;
    const std::uint64_t before = flow.sent - settings_.slots;
    if (settings_.split) {
        for (std::uint32_t i = 0; i < count; ++i) {
            const SendQueue& sends = queues_[flow.first_queue + i].sends;
            if (sends.full() || (reused && !sends.retired(before))) return false;
        }
        return true;
    }
    if (queues_[flow.first_queue + flow.sent % count].sends.full()) return false;
    return !reused || queues_[flow.first_queue + before % count].sends.retired(before / count);
}

bool VerbsTransport::busy(std::uint32_t connection) const {
    const Flow& flow = flows_[ends_[connection].out];
    if (sendable(flow)) return false;
    flow.blocked = true;
    return true;
}

bool VerbsTransport::send(std::uint32_t connection, const Frame& frame, SendTimes& times) {
    Flow& flow = flows_[ends_[connection].out];
    times.first = monotonic_now();
    const std::uint64_t slot = flow.sent % settings_.slots;
    std::uint8_t* const source = flow.slots + slot * flow.slot_bytes;
    if (verify_) Pattern(frame).fill(source, 0, frame.bytes);
    const std::uint32_t count = settings_.queue_pairs;
    if (settings_.split) {
        for (std::uint32_t i = 0; i < count; ++i) {
            add_part(queues_[flow.first_queue + i], flow, frame.call_id, slot,
                     Part::of(frame.bytes, i, count), source);
        }
    } else {
        add_part(queues_[flow.first_queue + flow.sent % count], flow, frame.call_id, slot, {0, frame.bytes},
                 source);
    }
    ++flow.sent;
    moved_ += frame.bytes;
    times.last = verify_ ? monotonic_now() : times.first;
    return true;
}

void VerbsTransport::add_part(Queue& queue, const Flow& flow, std::uint32_t call_id, std::uint64_t slot,
                              Part part, const std::uint8_t* source) {
    ibv_sge* piece = nullptr;
    ibv_send_wr& request = queue.sends.add(piece);
    if (settings_.mode == VerbsMode::kWrite) {
        request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        request.wr.rdma.remote_addr = flow.remote_address + slot * flow.remote_stride + part.offset;
        request.wr.rdma.rkey = flow.remote_rkey;
    } else {
        request.opcode = IBV_WR_SEND_WITH_IMM;
    }
    request.imm_data = Immediate::of_call(call_id);
    if (part.bytes > 0) {
        *piece = {endpoint_->address_of(source) + part.offset, static_cast<std::uint32_t>(part.bytes),
                  endpoint_->lkey()};
        request.sg_list = piece;
        request.num_sge = 1;
        if (part.bytes <= endpoint_->inline_bytes()) {
            request.send_flags |= IBV_SEND_INLINE;
            ++stats_.inlined;
        }
    }
    mark(queue);
}

void VerbsTransport::send_credit(std::uint32_t connection, std::uint64_t messages) {
    Flow& flow = flows_[ends_[connection].in];
    flow.rank_messages = messages;
    if (!std::exchange(flow.due, true)) due_.push_back(ends_[connection].in);
}

// Whether the credit that had the next place in the ring before is complete.
bool VerbsTransport::credit_room(const Flow& flow) const {
    return queues_[flow.first_queue].sends.outstanding() < credit_ring_;
}

// Tells the sender what it may send; there is room for it.
void VerbsTransport::add_credit(Flow& flow) {
    Queue& queue = queues_[flow.first_queue];
    Credit credit;
    credit.number = flow.credits_sent;
    credit.granted = flow.delivered + settings_.slots;
    credit.rank_messages = flow.rank_messages;
    const std::uint64_t at = flow.credits_sent % credit_ring_ * sizeof credit;
    std::memcpy(flow.ring + at, &credit, sizeof credit);
    ibv_sge* piece = nullptr;
    ibv_send_wr& request = queue.sends.add(piece);
    request.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
    request.imm_data = Immediate::of_credit(flow.credits_sent);
    request.wr.rdma.remote_addr = flow.remote_address + at;
    request.wr.rdma.rkey = flow.remote_rkey;
    *piece = {endpoint_->address_of(flow.ring) + at, sizeof credit, endpoint_->lkey()};
    request.sg_list = piece;
    request.num_sge = 1;
    if (sizeof credit <= endpoint_->inline_bytes()) {
        request.send_flags |= IBV_SEND_INLINE;
        ++stats_.inlined;
    }
    ++flow.credits_sent;
    ++stats_.credits;
    flow.told = flow.delivered;
    mark(queue);
}

void VerbsTransport::mark(Queue& queue) {
    ++outstanding_;
    if (queue.sends.chain_full()) post(queue);
    if (!std::exchange(queue.dirty, true))
        dirty_.push_back(static_cast<std::uint32_t>(&queue - queues_.data()));
}

void VerbsTransport::post(Queue& queue) {
    if (queue.silent) return queue.sends.drop();
    if (const int error = queue.sends.post(queue.pair.get(), stats_); error != 0) {
        troubles_.push_back(
            {queue.flow, with_reason("cannot post to " + describe(flows_[queue.flow], queue), error)});
    }
}

void VerbsTransport::post_receives(Queue& queue) {
    if (queue.silent) return;
    if (const int error = queue.receives.post(queue.pair.get(), stats_); error != 0) {
        troubles_.push_back(
            {queue.flow,
             with_reason("cannot post receives to " + describe(flows_[queue.flow], queue), error)});
    }
}

// Posts all that has gathered, a call for each queue pair.
void VerbsTransport::flush() {
    std::size_t kept = 0;
    for (const std::uint32_t f : due_) {
        Flow& flow = flows_[f];
        if (!flow.due) continue;  // it went with another
        if (!credit_room(flow)) {
            due_[kept++] = f;
            continue;
        }
        flow.due = false;
        add_credit(flow);
    }
    due_.resize(kept);
    for (const std::uint32_t q : dirty_) {
        Queue& queue = queues_[q];
        queue.dirty = false;
        if (!queue.sends.chain_empty()) post(queue);
    }
    dirty_.clear();
}

// -- receiving

bool VerbsTransport::poll(Sink& sink) {
    flush();
    bool any = false;
    pending_ = false;
    for (int batch = 0; batch < kMostBatches; ++batch) {
        if (gathered_count_ == 0 && !look()) break;
        any = true;
        const int count = std::exchange(gathered_count_, 0);
        const Nanos now = monotonic_now();
        for (int i = 0; i < count; ++i) {
            if (!handle(gathered_[static_cast<std::size_t>(i)], now, sink)) return true;
        }
        pending_ = count == static_cast<int>(gathered_.size());
        if (!pending_) break;
    }
    if (!troubles_.empty()) tell_troubles(sink);
    return any;
}

bool VerbsTransport::handle(const ibv_wc& completion, Nanos now, Sink& sink) {
    const WorkId id = WorkId::from(completion.wr_id);
    Queue& queue = queues_[id.queue];
    Flow& flow = flows_[queue.flow];
    if (completion.status != IBV_WC_SUCCESS) {
        const std::string text = completion_status_name(completion.status) + " on " + describe(flow, queue) +
                                 ": " +
                                 completion_cause(completion.status, settings_.timeout, settings_.retry_count,
                                                  settings_.rnr_retry) +
                                 (port_note_.empty() ? "" : "; before: " + port_note_);
        if (completion.status == IBV_WC_WR_FLUSH_ERR) {
            // What follows an error; told only if that is not found among the completions.
            if (!flow.lost) troubles_.push_back({queue.flow, text});
            return true;
        }
        lose(flow, sink, Code::kTransport, text);
        return false;
    }
    if (!id.receive) {
        outstanding_ -= queue.sends.retire(id.sequence);
        if (flow.sends && flow.blocked) free_if_sendable(flow, sink);
        return true;
    }
    return flow.sends ? take_credit(queue, completion, now, sink) : take_data(queue, completion, now, sink);
}

bool VerbsTransport::take_data(Queue& queue, const ibv_wc& completion, Nanos now, Sink& sink) {
    Flow& flow = flows_[queue.flow];
    const Immediate immediate = Immediate::from(completion.imm_data);
    const auto lane = static_cast<std::uint32_t>(&queue - queues_.data()) - flow.first_queue;
    const std::uint32_t request = queue.receives.take();
    if ((completion.wc_flags & IBV_WC_WITH_IMM) == 0 || immediate.credit ||
        !flow.arrivals.put(lane, {immediate.value, completion.byte_len, request})) {
        lose(flow, sink, Code::kProtocol,
             "unexpected on " + describe(flow, queue) + ": " +
                 (immediate.credit ? "a credit where messages come" : "more messages than it may send"));
        return false;
    }
    while (flow.arrivals.ready(flow.delivered)) {
        if (!deliver(flow, now, sink)) return false;
    }
    return true;
}

// Gives the next message, which is here whole, to the rank.
bool VerbsTransport::deliver(Flow& flow, Nanos now, Sink& sink) {
    Arrivals& arrivals = flow.arrivals;
    const std::uint32_t first = arrivals.first_queue(flow.delivered);
    const std::uint32_t count = arrivals.queue_count();
    const std::uint32_t call_id = arrivals.front(first).call_id;
    Frame frame;
    if (!sink.expect(flow.connection, call_id, frame)) return false;
    frame.bytes = 0;
    for (std::uint32_t i = 0; i < count; ++i) {
        const Arrivals::Arrival& arrival = arrivals.front(first + i);
        frame.bytes += arrival.bytes;
        if (arrival.call_id != call_id) {
            lose(flow, sink, Code::kProtocol,
                 "parts of one message from rank " + std::to_string(peer_of(flow)) + " name calls " +
                     std::to_string(call_id) + " and " + std::to_string(arrival.call_id));
            return false;
        }
    }
    if (!sink.on_header(flow.connection, frame, now)) return false;
    if (verify_ && !same_pattern(flow, frame, sink)) return false;
    for (std::uint32_t i = 0; i < count; ++i) {
        Queue& queue = queues_[flow.first_queue + first + i];
        arrivals.pop(first + i);
        queue.receives.give_back();
        // Before the credit goes out: a message must never find no receive.
        if (queue.receives.due()) post_receives(queue);
    }
    ++flow.delivered;
    moved_ += frame.bytes;
    sink.on_message(flow.connection, now);
    const bool enough = flow.delivered - flow.told >= settings_.credit_every;
    if ((enough || flow.due) && credit_room(flow)) {
        flow.due = false;
        add_credit(flow);
    } else if (enough && !std::exchange(flow.due, true)) {
        due_.push_back(static_cast<std::uint32_t>(&flow - flows_.data()));
    }
    return true;
}

// Looks at the bytes of the next message, in its slot or where its receives put its parts.
bool VerbsTransport::same_pattern(Flow& flow, const Frame& frame, Sink& sink) {
    const Pattern pattern(frame);
    const Arrivals& arrivals = flow.arrivals;
    const std::uint32_t first = arrivals.first_queue(flow.delivered);
    const std::uint32_t count = arrivals.queue_count();
    for (std::uint32_t i = 0; i < count; ++i) {
        const Part part = Part::of(frame.bytes, i, count);
        const Arrivals::Arrival& arrival = arrivals.front(first + i);
        if (arrival.bytes != part.bytes) {
            lose(flow, sink, Code::kSizeMismatch,
                 "part " + std::to_string(i) + " of a message from rank " + std::to_string(peer_of(flow)) +
                     ": expected " + std::to_string(part.bytes) + " bytes, found " +
                     std::to_string(arrival.bytes));
            return false;
        }
        const std::uint8_t* const data =
            settings_.mode == VerbsMode::kWrite
                ? flow.slots + flow.delivered % settings_.slots * flow.slot_bytes + part.offset
                : reinterpret_cast<const std::uint8_t*>(
                      queues_[flow.first_queue + first + i].receives.place_of(arrival.request).addr);
        const std::size_t same = pattern.compare(data, part.offset, part.bytes);
        if (same == part.bytes) continue;
        sink.on_lost(flow.connection, Code::kBadPayload,
                     "byte " + std::to_string(part.offset + same) + " of message " +
                         std::to_string(frame.message & kNone) + " of call " + std::to_string(frame.call_id) +
                         " from rank " + std::to_string(peer_of(flow)) + " is not the one that was sent");
        return false;
    }
    return true;
}

bool VerbsTransport::take_credit(Queue& queue, const ibv_wc& completion, Nanos now, Sink& sink) {
    Flow& flow = flows_[queue.flow];
    const Immediate immediate = Immediate::from(completion.imm_data);
    Credit credit;
    std::memcpy(&credit, flow.ring + flow.credits_seen % credit_ring_ * sizeof credit, sizeof credit);
    const bool right = (completion.wc_flags & IBV_WC_WITH_IMM) != 0 && immediate.credit &&
                       immediate.value == (flow.credits_seen & Immediate::kMost) &&
                       credit.number == flow.credits_seen && credit.granted >= flow.granted &&
                       credit.granted <= flow.sent + settings_.slots;
    if (!right) {
        lose(flow, sink, Code::kProtocol,
             "a credit that cannot be on " + describe(flow, queue) + ": number " +
                 std::to_string(credit.number) + " for " + std::to_string(credit.granted) +
                 " messages where " + std::to_string(flow.sent) + " were sent");
        return false;
    }
    queue.receives.take();
    queue.receives.give_back();
    if (queue.receives.due()) post_receives(queue);
    ++flow.credits_seen;
    flow.granted = credit.granted;
    if (credit.rank_messages > flow.rank_messages_seen) {
        flow.rank_messages_seen = credit.rank_messages;
        sink.on_credit(flow.connection, credit.rank_messages, now);
    }
    if (flow.blocked) free_if_sendable(flow, sink);
    return true;
}

void VerbsTransport::free_if_sendable(Flow& flow, Sink& sink) {
    if (!sendable(flow)) return;
    flow.blocked = false;
    sink.on_free(flow.connection);
}

// -- trouble: the cold path

void VerbsTransport::lose(Flow& flow, Sink& sink, Code code, const std::string& text) {
    if (std::exchange(flow.lost, true)) return;
    sink.on_lost(flow.connection, code, text);
}

void VerbsTransport::tell_troubles(Sink& sink) {
    for (const Trouble& trouble : std::exchange(troubles_, {})) {
        if (trouble.flow != kNone) {
            lose(flows_[trouble.flow], sink, Code::kTransport, trouble.text);
            continue;
        }
        for (Flow& flow : flows_) lose(flow, sink, Code::kTransport, trouble.text);
    }
}

std::string VerbsTransport::describe(const Flow& flow, const Queue& queue) const {
    return "queue pair " + std::to_string(queue.own.number) + " (" + endpoint_->where() + ") " +
           (flow.sends ? "to" : "from") + " rank " + std::to_string(peer_of(flow)) + " (GID " +
           gid_text(flow.remote_gid) + ", queue pair " + std::to_string(queue.remote.number) + ")";
}

}  // namespace genie
