// The verbs transport until its ranks may start: what each direction of a connection needs, where it lies in
// the region, queue pairs, cards and connecting. Nothing here runs once the first message is sent.
#include <sys/random.h>

#include <algorithm>
#include <utility>

#include "json.h"
#include "verbs.h"

namespace genie {
namespace {

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
    log_(
        std::to_string(stats_.sends) + " sends (" + std::to_string(stats_.credits) + " of them credits" +
        (stats_.data_first == 0 ? "" : ", " + std::to_string(stats_.data_first) + " data before immediates") +
        ") in " + std::to_string(stats_.doorbells) + " doorbells, " + std::to_string(stats_.completions) +
        " completions in " + std::to_string(stats_.polls) + " polls (" + std::to_string(stats_.empty_polls) +
        " empty), " + std::to_string(stats_.sleeps) + " sleeps");
}

Opened VerbsTransport::open() {
    plan_flows();
    endpoint_.emplace(library_, settings_, program_.header.listen_ipv4, program_.header.rank);
    if (message_bytes_ > endpoint_->port().attributes.max_msg_sz) {
        throw Failure(Code::kTransport, endpoint_->where() + " takes messages of up to " +
                                            std::to_string(endpoint_->port().attributes.max_msg_sz) +
                                            " bytes (max_msg_sz), a call has " +
                                            std::to_string(message_bytes_) + ": lower chunk_bytes");
    }
    const bool infiniband = !endpoint_->port().ethernet();
    if (settings_.adaptive_routing == VerbsChoice::kYes ||
        (settings_.adaptive_routing == VerbsChoice::kAuto && infiniband &&
         settings_.mode == VerbsMode::kWrite)) {
        data_first_above_ = settings_.ar_threshold_bytes;
        requests_a_part_ = 2;
    }
    place_flows();
    make_queues();
    if (log_) {
        log_(endpoint_->where() + ", GID index " + std::to_string(endpoint_->gid().index) + " " +
             gid_text(endpoint_->gid().bytes) + " (" + gid_why() + "), MTU " +
             std::to_string(mtu_bytes(endpoint_->mtu())) + ", " + std::to_string(queues_.size()) +
             " queue pairs" +
             (data_first_above_ == kNever
                  ? ""
                  : ", data before immediates above " + std::to_string(data_first_above_) + " bytes") +
             (endpoint_->relaxed_ordering() ? ", relaxed ordering asked for" : ""));
        if (endpoint_->inline_bytes() < settings_.inline_bytes) {
            log_("the device takes " + std::to_string(endpoint_->inline_bytes()) + " bytes inline, not " +
                 std::to_string(settings_.inline_bytes));
        }
    }
    return {0, card().bytes(), used()};
}

std::string VerbsTransport::used() const {
    const VerbsPort& port = endpoint_->port();
    const VerbsGid& gid = endpoint_->gid();
    JsonObject out;
    out.text("device", endpoint_->device().name)
        .text("firmware", endpoint_->device().attributes.fw_ver)
        .number("port", port.number)
        .text("link_layer", port.layer_text())
        .number("gid_index", gid.index)
        .text("gid", gid_text(gid.bytes))
        .text("gid_type", gid_type_text(gid.type))
        .text("gid_why", gid_why())
        .text("interface", gid.interface)
        .number("lid", port.attributes.lid)
        .number("mtu_bytes", mtu_bytes(endpoint_->mtu()))
        .number("queue_pairs", queues_.size())
        .number("inline_bytes", endpoint_->inline_bytes())
        .flag("relaxed_ordering", endpoint_->relaxed_ordering());
    if (data_first_above_ == kNever) return out.none("data_first_above_bytes").done();
    return out.number("data_first_above_bytes", data_first_above_).done();
}

std::string VerbsTransport::gid_why() const {
    return settings_.gid_index >= 0 ? "as configured" : endpoint_->port().chosen.why;
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
        if (call.call_id > Immediate::kMostCall) {
            throw Failure(Code::kTransport, "call id " + std::to_string(call.call_id) +
                                                " does not fit the 30 bits that transport verbs has for it");
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
    for (const Flow& flow : flows_) {
        completions +=
            std::uint64_t{settings_.queue_pairs} *
            (send_depth(flow) + ReceiveQueue::depth_for(flow.sends ? credit_ring_ : settings_.slots));
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
    const std::uint64_t part =
        settings_.split ? Part::stride(message_bytes_, settings_.queue_pairs) : aligned(message_bytes_);
    for (std::uint32_t f = 0; f < flows_.size(); ++f) {
        Flow& flow = flows_[f];
        if (!flow.sends) flow.arrivals.set_up(settings_.queue_pairs, settings_.slots, settings_.split);
        std::uint8_t* place = flow.slots;
        for (std::uint32_t i = 0; i < settings_.queue_pairs; ++i) {
            Queue& queue = queues_[flow.first_queue + i];
            queue.flow = f;
            queue.sends.set_up(flow.first_queue + i, send_depth(flow));
            if (verify_ && flow.sends) queue.last_of_slot.resize(settings_.slots);
            queue.receives.set_up(flow.first_queue + i, flow.sends ? credit_ring_ : settings_.slots);
            queue.pair = endpoint_->make_queue_pair(send_depth(flow), queue.receives.depth());
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
    card.data_first_above = data_first_above_;
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
    if (own.data_first_above == theirs.data_first_above) return;
    const auto shown = [](const VerbsCard& card) {
        return card.data_first_above == kNever ? "off" : "above " + std::to_string(card.data_first_above);
    };
    throw Failure(Code::kProtocol,
                  "rank " + std::to_string(rank) + " has adaptive routing " + shown(theirs) + ", this rank " +
                      shown(own) + ": expected the same on all ranks",
                  rank);
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

}  // namespace genie
