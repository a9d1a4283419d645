// The verbs transport while its rank runs: work requests that gather and go out together, completions and
// what they mean.
#include "verbs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "clock.h"
#include "pattern.h"
#include "verbs_error.h"

namespace genie {
namespace {

constexpr int kMostBatches = 16;  // of completions in one `poll`

}  // namespace

// -- sending

bool VerbsTransport::sendable(const Flow& flow) const {
    if (flow.sent >= flow.granted) return false;
    if (!settings_.split) return takes_next(flow, queues_[flow.first_queue + flow.next_queue]);
    const auto first = queues_.begin() + flow.first_queue;
    return std::all_of(first, first + settings_.queue_pairs,
                       [&](const Queue& queue) { return takes_next(flow, queue); });
}

// Whether a queue pair takes its part of the next message. With the verify flag its slot is free once the
// message that had it last is complete, not only received.
bool VerbsTransport::takes_next(const Flow& flow, const Queue& queue) const {
    if (!queue.sends.has_room(requests_a_part_)) return false;
    if (!verify_ || flow.sent < settings_.slots) return true;
    if (settings_.split) return queue.sends.retired(queue.last_of_slot[flow.next_slot]);
    const auto before = static_cast<std::uint32_t>((flow.sent - settings_.slots) % settings_.queue_pairs);
    const Queue& last = queues_[flow.first_queue + before];
    return last.sends.retired(last.last_of_slot[flow.next_slot]);
}

bool VerbsTransport::busy(std::uint32_t connection) const {
    const Flow& flow = flows_[ends_[connection].out];
    if (sendable(flow)) return false;
    flow.blocked = true;
    return true;
}

bool VerbsTransport::send(std::uint32_t connection, const Frame& frame, SendTimes& times) {
    Flow& flow = flows_[ends_[connection].out];
    times.first = just_now_.value != 0 ? std::exchange(just_now_, {}) : monotonic_now();
    const std::uint32_t slot = flow.next_slot;
    std::uint8_t* const source = flow.slots + slot * flow.slot_bytes;
    if (verify_) Pattern(frame).fill(source, 0, frame.bytes);
    const std::uint32_t count = settings_.queue_pairs;
    const bool data_first = frame.bytes > data_first_above_;
    if (settings_.split) {
        for (std::uint32_t i = 0; i < count; ++i) {
            add_part(queues_[flow.first_queue + i], flow, frame.call_id, slot,
                     Part::of(frame.bytes, i, count), source, data_first);
        }
    } else {
        add_part(queues_[flow.first_queue + flow.next_queue], flow, frame.call_id, slot, {0, frame.bytes},
                 source, data_first);
        if (++flow.next_queue == count) flow.next_queue = 0;
    }
    if (++flow.next_slot == settings_.slots) flow.next_slot = 0;
    ++flow.sent;
    moved_ += frame.bytes;
    times.last = verify_ ? monotonic_now() : times.first;
    return true;
}

// What a queue pair carries of a message: one request, or as NCCL has it for adaptive routing (net_ib/p2p.cc,
// ncclIbMultiSend) two, an empty part's too.
void VerbsTransport::add_part(Queue& queue, const Flow& flow, std::uint32_t call_id, std::uint64_t slot,
                              Part part, const std::uint8_t* source, bool data_first) {
    if (data_first) {
        add_request(queue, flow, slot, part, source).opcode = IBV_WR_RDMA_WRITE;
        ++stats_.data_first;
        mark(queue);
        part.bytes = 0;
    }
    ibv_send_wr& request = add_request(queue, flow, slot, part, source);
    request.opcode = settings_.mode == VerbsMode::kWrite ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_SEND_WITH_IMM;
    request.imm_data = Immediate::of_call(call_id, data_first);
    if (verify_) queue.last_of_slot[slot] = queue.sends.last();
    mark(queue);
}

// A request without an operation yet, of a part of the message in a slot.
ibv_send_wr& VerbsTransport::add_request(Queue& queue, const Flow& flow, std::uint64_t slot, Part part,
                                         const std::uint8_t* source) {
    ibv_sge* piece = nullptr;
    ibv_send_wr& request = queue.sends.add(piece);
    if (settings_.mode == VerbsMode::kWrite) {
        request.wr.rdma.remote_addr = flow.remote_address + slot * flow.remote_stride + part.offset;
        request.wr.rdma.rkey = flow.remote_rkey;
    }
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
    return request;
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

void VerbsTransport::post_gathered() {
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

bool VerbsTransport::drained() const {
    draining_ = outstanding_ > 0 || !due_.empty();
    return !draining_;
}

// -- receiving

bool VerbsTransport::poll(Sink& sink, Nanos now) {
    flush();
    bool any = false;
    pending_ = false;
    for (int batch = 0; batch < kMostBatches; ++batch) {
        // What `gather` had found was there at `now`; a look at the clock costs as much as a poll.
        if (gathered_count_ == 0) {
            if (!look()) break;
            now = monotonic_now();
        }
        any = true;
        if (!verify_) just_now_ = now;
        const int count = std::exchange(gathered_count_, 0);
        for (int i = 0; i < count; ++i) {
            last_found_ = i + 1 == count;
            if (!handle(gathered_[static_cast<std::size_t>(i)], now, sink)) return true;
            just_now_ = {};
        }
        pending_ = full_;
        if (!pending_) break;
    }
    flush();  // on its way while the rank goes on
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
        !flow.arrivals.put(lane, {immediate.value, completion.byte_len, request, immediate.data_first})) {
        lose(flow, sink, Code::kProtocol,
             "unexpected on " + describe(flow, queue) + ": " +
                 (immediate.credit ? "a credit where messages come" : "more messages than it may send"));
        return false;
    }
    while (flow.arrivals.ready()) {
        if (!deliver(flow, now, sink)) return false;
    }
    return true;
}

// Gives the next message, which is here whole, to the rank.
bool VerbsTransport::deliver(Flow& flow, Nanos now, Sink& sink) {
    Arrivals& arrivals = flow.arrivals;
    const std::uint32_t first = arrivals.first_queue();
    const std::uint32_t count = arrivals.queue_count();
    const Arrivals::Arrival& head = arrivals.front(first);
    Frame frame;
    if (!sink.expect(flow.connection, head.call_id, now, frame)) return false;
    const std::uint64_t due_bytes = std::exchange(frame.bytes, head.bytes);
    for (std::uint32_t i = 1; i < count; ++i) {
        const Arrivals::Arrival& part = arrivals.front(first + i);
        frame.bytes += part.bytes;
        if (part.call_id != head.call_id || part.data_first != head.data_first)
            return refuse_parts(flow, head, part, sink);
    }
    if (head.data_first) {
        // A plain write says no size at the receiver, and the immediate has no room for it.
        if (frame.bytes > 0 || due_bytes <= data_first_above_)
            return refuse_data_first(flow, frame, due_bytes, sink);
        frame.bytes = due_bytes;
    }
    if (frame.bytes != due_bytes) {
        sink.on_wrong_size(flow.connection, frame);
        return false;
    }
    if (verify_ && !same_pattern(flow, frame, sink)) return false;
    const bool enough = flow.delivered + 1 - flow.told >= settings_.credit_every;
    sink.on_message(flow.connection, now);
    // The answer first, unless a credit may share its doorbell.
    if (last_found_ && !enough && !flow.due) flush();
    for (std::uint32_t i = 0; i < count; ++i) {
        Queue& queue = queues_[flow.first_queue + first + i];
        queue.receives.give_back();
        // Before the credit goes out: a message must never find no receive.
        if (queue.receives.due()) post_receives(queue);
    }
    arrivals.pop();
    ++flow.delivered;
    moved_ += frame.bytes;
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
    const std::uint32_t first = arrivals.first_queue();
    const std::uint32_t count = arrivals.queue_count();
    for (std::uint32_t i = 0; i < count; ++i) {
        const Part part = Part::of(frame.bytes, i, count);
        const Arrivals::Arrival& arrival = arrivals.front(first + i);
        if (!arrival.data_first && arrival.bytes != part.bytes) {
            lose(flow, sink, Code::kSizeMismatch,
                 "part " + std::to_string(i) + " of a message from rank " + std::to_string(peer_of(flow)) +
                     ": expected " + std::to_string(part.bytes) + " bytes, found " +
                     std::to_string(arrival.bytes));
            return false;
        }
        const std::uint8_t* const data =
            settings_.mode == VerbsMode::kWrite
                ? flow.slots + flow.delivered % settings_.slots * flow.slot_bytes + part.offset
                : endpoint_->place_at(
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

bool VerbsTransport::refuse_parts(Flow& flow, const Arrivals::Arrival& one, const Arrivals::Arrival& other,
                                  Sink& sink) {
    lose(flow, sink, Code::kProtocol,
         "parts of one message from rank " + std::to_string(peer_of(flow)) + " name calls " +
             std::to_string(one.call_id) + " and " + std::to_string(other.call_id) +
             (one.data_first != other.data_first ? ", and not all came after their data" : ""));
    return false;
}

bool VerbsTransport::refuse_data_first(Flow& flow, const Frame& frame, std::uint64_t due_bytes, Sink& sink) {
    lose(flow, sink, Code::kSizeMismatch,
         "a message of call " + std::to_string(frame.call_id) + " from rank " +
             std::to_string(peer_of(flow)) + " came as " +
             (data_first_above_ == kNever
                  ? std::string("data and then their immediate, which this rank does not do")
                  : "messages longer than transport.ar_threshold_bytes=" + std::to_string(data_first_above_) +
                        " do, with " + std::to_string(frame.bytes) + " bytes beside its immediate") +
             ": expected " + std::to_string(due_bytes) + " bytes");
    return false;
}

bool VerbsTransport::take_credit(Queue& queue, const ibv_wc& completion, Nanos now, Sink& sink) {
    Flow& flow = flows_[queue.flow];
    const Immediate immediate = Immediate::from(completion.imm_data);
    Credit credit;
    std::memcpy(&credit, flow.ring + flow.credits_seen % credit_ring_ * sizeof credit, sizeof credit);
    const bool right = (completion.wc_flags & IBV_WC_WITH_IMM) != 0 && immediate.credit &&
                       immediate.value == (flow.credits_seen & Immediate::kMostCredit) &&
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

std::string VerbsTransport::unfinished() const {
    const auto waits = std::find_if(queues_.begin(), queues_.end(),
                                    [](const Queue& queue) { return queue.sends.outstanding() > 0; });
    if (waits == queues_.end()) return {};
    std::string text = std::to_string(outstanding_) + " requests are not acknowledged, the first on " +
                       describe(flows_[waits->flow], *waits);
    const double limit_s = static_cast<double>(program_.header.timeout_ns) / 1e9;
    if (settings_.timeout == 0) {
        return text + "; the device waits for them without end (transport.timeout=0): set it to hear more";
    }
    const double gives_up_s = retries_exhausted_s(settings_.timeout, settings_.retry_count);
    if (gives_up_s < limit_s) return text;
    return text + "; the device gives up after " + seconds_text(gives_up_s) +
           " at the earliest (transport.timeout, transport.retry_cnt), which is not before timeout=" +
           seconds_text(limit_s) + ": raise timeout, or lower one of these, to hear its word";
}

std::string VerbsTransport::describe(const Flow& flow, const Queue& queue) const {
    return "queue pair " + std::to_string(queue.own.number) + " (" + endpoint_->where() + ") " +
           (flow.sends ? "to" : "from") + " rank " + std::to_string(peer_of(flow)) + " (GID " +
           gid_text(flow.remote_gid) + ", queue pair " + std::to_string(queue.remote.number) + ")";
}

}  // namespace genie
