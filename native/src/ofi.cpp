#include "ofi.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "clock.h"
#include "json.h"
#include "message_sizes.h"
#include "pattern.h"
#include "settings.h"

namespace genie {
namespace {

// Tags: what it is, then whose. A greeting names its sender, everything else the receiver's connection.
constexpr int kKindShift = 46;
constexpr int kFromShift = 16;
constexpr std::int64_t kMostSlots = 1024;
constexpr std::uint32_t kCreditReceives = 2;  // of one connection; the peer seldom has more on the way
constexpr std::size_t kGreetingBytes = 128;   // that a greeting's place has
constexpr std::uint8_t kCardVersion = 1;
constexpr Nanos kGreetAgain = 50_ms;
constexpr Nanos kTryAgain = 50_us;  // what the provider did not take at once

std::uint64_t rounded(std::uint64_t size, std::uint64_t to) { return (size + to - 1) / to * to; }

}  // namespace

OfiTransport::OfiTransport(const RankContext& context)
    : program_(context.program),
      token_(context.token),
      stop_fd_(context.stop_fd),
      log_(context.log),
      verify_(program_.verify()),
      send_bytes_(longest_message(program_, StepKind::kSend)),
      receive_bytes_(longest_message(program_, StepKind::kRecv)),
      peers_(program_.connections.size()) {
    Settings settings("ofi", program_.settings);
    provider_ = settings.text("provider");
    domain_ = settings.text("domain");
    slots_ = static_cast<std::uint32_t>(settings.number("slots", 1, kMostSlots));
    settings.done();
}

std::vector<OfiTransport::Abandoned>& OfiTransport::abandoned() {
    // Never destroyed: closing them is what must not happen, at the end of the process neither.
    static auto& all = *new std::vector<Abandoned>;
    return all;
}

OfiTransport::~OfiTransport() {
    if (endpoint_ == nullptr) return;
    if (posted_ > 0 && endpoint_->layered()) {
        // ofi_rxm (1.17) may crash when an endpoint is closed with sends under way while a peer closes its
        // own, which is how a run that was stopped ends. Nobody drives it any more, and the process ends
        // soon.
        static std::mutex mutex;
        const std::lock_guard lock(mutex);
        abandoned().push_back({std::move(endpoint_), std::move(memory_), std::move(peers_)});
        return;
    }
    endpoint_->close();
}

Opened OfiTransport::open() {
    const ProgramHeader& header = program_.header;
    OfiWanted wanted;
    wanted.provider = provider_;
    wanted.domain = domain_;
    wanted.ipv4 = header.listen_ipv4;
    wanted.port = header.listen_port;
    wanted.sends = peers_.size() * (slots_ + 2);
    wanted.receives = peers_.size() * (slots_ + kCreditReceives + 1);
    wanted.message_bytes = std::max(send_bytes_, receive_bytes_);
    OfiLibrary::expect_ranks(header.world);
    endpoint_ = std::make_unique<OfiEndpoint>(wanted);
    memory_ = std::make_unique<OfiMemory>();
    provider_ = endpoint_->provider();
    if (!endpoint_->sleeps() && log_) {
        log_("provider " + provider_ + " has nothing to sleep on: waiting takes processor time");
    }
    // Greetings, then what is sent, then what is received: a place for each slot, or one for all.
    send_bytes_ = rounded(send_bytes_, 64);
    receive_bytes_ = rounded(receive_bytes_, 64);
    const std::size_t places = verify_ ? peers_.size() * slots_ : 1;
    greetings_bytes_ = rounded(2 * peers_.size() * kGreetingBytes, 4096);
    endpoint_->map(*memory_, greetings_bytes_ + places * (send_bytes_ + receive_bytes_));
    Opened opened;
    opened.port = endpoint_->port();
    opened.card = {kCardVersion, static_cast<std::uint8_t>(provider_.size())};
    opened.card.insert(opened.card.end(), provider_.begin(), provider_.end());
    const std::vector<std::uint8_t>& address = endpoint_->address();
    opened.card.insert(opened.card.end(), address.begin(), address.end());
    opened.used = JsonObject()
                      .text("provider", provider_)
                      .text("domain", endpoint_->domain())
                      .text("libfabric", OfiLibrary::get().version_text())
                      .flag("sleeps", endpoint_->sleeps())
                      .done();
    return opened;
}

std::uint8_t* OfiTransport::payload(bool is_send, std::uint32_t connection, std::uint32_t slot) const {
    const std::size_t places = verify_ ? peers_.size() * slots_ : 1;
    const std::size_t place = verify_ ? std::size_t{connection} * slots_ + slot : 0;
    return memory_->at(greetings_bytes_ +
                       (is_send ? place * send_bytes_ : places * send_bytes_ + place * receive_bytes_));
}

std::string OfiTransport::who(std::uint32_t connection) const {
    return "rank " + std::to_string(program_.connections[connection].peer);
}

// -- setting up

OfiTransport::Greeting* OfiTransport::greeting_at(std::uint32_t connection, bool own) const {
    return reinterpret_cast<Greeting*>(
        memory_->at((2 * std::size_t{connection} + (own ? 1 : 0)) * kGreetingBytes));
}

Digest OfiTransport::prove(const Greeting& greeting) const {
    return hmac_sha256(token_, {reinterpret_cast<const std::uint8_t*>(&greeting), offsetof(Greeting, proof)});
}

// Posts every receive: a peer that is ready earlier may send at once.
void OfiTransport::prepare(const std::vector<Endpoint>& endpoints) {
    std::map<std::uint32_t, fi_addr_t> addresses;
    for (std::uint32_t i = 0; i < peers_.size(); ++i) {
        const Connection& connection = program_.connections[i];
        Peer& peer = peers_[i];
        const auto endpoint = std::find_if(endpoints.begin(), endpoints.end(),
                                           [&](const Endpoint& one) { return one.rank == connection.peer; });
        if (endpoint == endpoints.end() || endpoint->card.size() < 2) {
            throw Failure(Code::kConnect, "nobody said where " + who(i) + " is to be reached",
                          connection.peer);
        }
        const auto known = addresses.find(connection.peer);
        if (known == addresses.end()) {
            const std::vector<std::uint8_t>& card = endpoint->card;
            const std::size_t name = std::min<std::size_t>(card[1], card.size() - 2);
            const std::string provider(card.begin() + 2, card.begin() + 2 + static_cast<int>(name));
            if (card[0] != kCardVersion || provider != provider_) {
                throw Failure(Code::kConnect,
                              who(i) + " uses provider '" + provider + "' (card version " +
                                  std::to_string(card[0]) + "), this rank '" + provider_ + "' (version " +
                                  std::to_string(kCardVersion) + "): install the same libfabric on all hosts",
                              connection.peer);
            }
            peer.address =
                endpoint_->insert({card.begin() + 2 + static_cast<int>(name), card.end()}, connection.peer);
            addresses.emplace(connection.peer, peer.address);
        } else {
            peer.address = known->second;
        }
        const auto make = [i](std::vector<Operation>& operations, std::uint32_t count, Kind kind,
                              bool is_send) {
            operations.resize(count);
            for (std::uint32_t slot = 0; slot < count; ++slot) {
                operations[slot].kind = kind;
                operations[slot].is_send = is_send;
                operations[slot].connection = i;
                operations[slot].slot = slot;
            }
        };
        make(peer.receives, slots_, Kind::kData, false);
        make(peer.credit_receives, kCreditReceives, Kind::kCredit, false);
        make(peer.sends, slots_, Kind::kData, true);
        peer.credit.kind = Kind::kCredit;
        peer.greeting.kind = peer.greeting_receive.kind = Kind::kGreeting;
        peer.credit.is_send = peer.greeting.is_send = true;
        peer.credit.connection = peer.greeting.connection = peer.greeting_receive.connection = i;
        post_receive(i, peer.greeting_receive,
                     std::uint64_t{connection.peer} << kFromShift | connection.channel, greeting_at(i, false),
                     sizeof(Greeting));
        for (std::uint32_t slot = 0; slot < slots_; ++slot) post_data_receive(i, slot);
        for (std::uint32_t slot = 0; slot < kCreditReceives; ++slot) post_credit_receive(i, slot);
        peer.greet_at = connection.role == Role::kConnect ? Nanos{0} : Nanos::never();
    }
    if (trouble_) throw Failure(trouble_->code, trouble_->text);
}

void OfiTransport::greet(std::uint32_t connection) {
    Peer& peer = peers_[connection];
    const Connection& link = program_.connections[connection];
    Greeting& greeting = *greeting_at(connection, true);
    greeting = {};
    std::memcpy(greeting.run_id, program_.header.run_id, sizeof greeting.run_id);
    greeting.from = program_.header.rank;
    greeting.to = link.peer;
    greeting.channel = link.channel;
    greeting.connection = connection;
    greeting.slots = slots_;
    const Digest proof = prove(greeting);
    std::copy(proof.begin(), proof.end(), greeting.proof);
    peer.greeting.bytes = sizeof greeting;
    const bool done = post_send(connection, peer.greeting, &greeting, 0,
                                std::uint64_t{greeting.from} << kFromShift | link.channel);
    peer.greet_at = done ? Nanos::never() : monotonic_now() + kTryAgain;
}

// The peer's greeting is here.
void OfiTransport::greeted(std::uint32_t connection, std::size_t bytes) {
    Peer& peer = peers_[connection];
    const Connection& link = program_.connections[connection];
    const Greeting& greeting = *greeting_at(connection, false);
    std::string wrong;
    if (bytes != sizeof greeting) {
        wrong = "it did not greet";
    } else if (!same_digest(prove(greeting), greeting.proof)) {
        wrong = "it lacks this run's token";
    } else if (std::memcmp(greeting.run_id, program_.header.run_id, sizeof greeting.run_id) != 0) {
        wrong = "it belongs to another run";
    } else if (greeting.from != link.peer || greeting.to != program_.header.rank ||
               greeting.channel != link.channel || greeting.slots == 0) {
        wrong = "it greets rank " + std::to_string(greeting.to) + " as rank " + std::to_string(greeting.from);
    }
    if (!wrong.empty()) {
        peer.trouble = wrong;
        if (log_) log_("refused a greeting for " + who(connection) + ": " + wrong);
        post_receive(connection, peer.greeting_receive, std::uint64_t{link.peer} << kFromShift | link.channel,
                     greeting_at(connection, false), sizeof greeting);
        return;
    }
    peer.greeted = true;
    peer.theirs = greeting.connection;
    peer.slots = greeting.slots;
    peer.room = greeting.slots;
    if (link.role == Role::kAccept) peer.greet_at = Nanos{0};
}

void OfiTransport::connect_all(const std::vector<Endpoint>& endpoints, const std::function<bool()>& stopped) {
    prepare(endpoints);
    const Nanos limit =
        monotonic_now() + Nanos{std::int64_t{program_.header.connect_timeout_s} * 1'000'000'000};
    for (;;) {
        const Nanos now = monotonic_now();
        Nanos wake = limit;
        std::uint32_t missing = kNone;
        for (std::uint32_t i = 0; i < peers_.size(); ++i) {
            Peer& peer = peers_[i];
            if (peer.greet_at <= now) greet(i);
            wake = std::min(wake, peer.greet_at);
            if (missing == kNone && !(peer.greeted && peer.answered)) missing = i;
        }
        if (trouble_)
            throw Failure(trouble_->code, trouble_->text, program_.connections[trouble_->connection].peer);
        if (missing == kNone) return;
        if (now >= limit) {
            throw Failure(Code::kConnect,
                          who(missing) + " was not reached over " + provider_ + " within " +
                              std::to_string(program_.header.connect_timeout_s) +
                              " s: " + peers_[missing].trouble,
                          program_.connections[missing].peer);
        }
        gather(now, wake);
        if (stopped()) {
            throw Failure(Code::kAborted, "stopped while it connected; " + who(missing) + " was missing",
                          program_.connections[missing].peer);
        }
        const std::size_t count = std::exchange(gathered_, 0);
        for (std::size_t e = 0; e < count; ++e) {
            auto& operation = *static_cast<Operation*>(entries_[e].op_context);
            operation.posted = false;
            if (operation.is_send) --posted_;
            if (operation.kind != Kind::kGreeting) {
                throw Failure(Code::kProtocol, who(operation.connection) + " sent before the start",
                              program_.connections[operation.connection].peer);
            }
            if (operation.is_send) {
                peers_[operation.connection].answered = true;
            } else {
                greeted(operation.connection, entries_[e].len);
            }
        }
    }
}

// -- posting

bool OfiTransport::post_send(std::uint32_t connection, Operation& operation, const void* data,
                             std::uint32_t note, std::uint64_t tag) {
    if (trouble_) return false;
    Peer& peer = peers_[connection];
    tag |= std::uint64_t{static_cast<std::uint8_t>(operation.kind)} << kKindShift;
    const ssize_t error = ::fi_tsenddata(endpoint_->endpoint(), data, operation.bytes, memory_->descriptor(),
                                         note, peer.address, tag, &operation.context);
    if (error == 0) {
        operation.posted = true;
        ++posted_;
        return true;
    }
    if (error != -FI_EAGAIN) {
        fail(connection, Code::kTransport,
             OfiLibrary::get().reason("cannot send to " + who(connection) + " over " + provider_, error));
    } else if (!peer.stalled) {
        peer.stalled = true;
        stalled_.push_back(connection);
    }
    return false;
}

bool OfiTransport::post_message(std::uint32_t connection) {
    Peer& peer = peers_[connection];
    const auto slot = static_cast<std::uint32_t>(peer.sent % slots_);
    Operation& operation = peer.sends[slot];
    if (operation.posted || peer.sent >= peer.room) return false;
    std::uint8_t* const data = payload(true, connection, slot);
    if (verify_) Pattern(peer.frame).fill(data, 0, peer.frame.bytes);
    operation.call_id = peer.frame.call_id;
    operation.bytes = peer.frame.bytes;
    if (!post_send(connection, operation, data, peer.frame.call_id, peer.theirs)) return false;
    ++peer.sent;
    peer.times.last = monotonic_now();
    return true;
}

bool OfiTransport::post_credit(std::uint32_t connection) {
    Peer& peer = peers_[connection];
    if (peer.credit.posted) return false;
    peer.credit.bytes = 0;
    if (!post_send(connection, peer.credit, memory_->at(0), static_cast<std::uint32_t>(peer.received),
                   peer.theirs)) {
        return false;
    }
    peer.credited = peer.received;
    peer.credit_due = false;
    --unsent_;
    return true;
}

void OfiTransport::post_receive(std::uint32_t connection, Operation& operation, std::uint64_t tag, void* data,
                                std::size_t bytes) {
    if (trouble_) return;
    tag |= std::uint64_t{static_cast<std::uint8_t>(operation.kind)} << kKindShift;
    const ssize_t error = ::fi_trecv(endpoint_->endpoint(), data, bytes, memory_->descriptor(),
                                     FI_ADDR_UNSPEC, tag, 0, &operation.context);
    if (error == 0) {
        operation.posted = true;
    } else if (error == -FI_EAGAIN) {
        fail(connection, Code::kTransport,
             "provider " + provider_ + " takes no more receives; " + std::to_string(peers_.size()) +
                 " connections post " + std::to_string(slots_ + kCreditReceives + 1) +
                 " each: lower transport.slots, or use fewer channels or peers");
    } else {
        fail(connection, Code::kTransport,
             OfiLibrary::get().reason("provider " + provider_ + " cannot post a receive", error));
    }
}

void OfiTransport::post_data_receive(std::uint32_t connection, std::uint32_t slot) {
    post_receive(connection, peers_[connection].receives[slot], connection, payload(false, connection, slot),
                 receive_bytes_);
}

void OfiTransport::post_credit_receive(std::uint32_t connection, std::uint32_t slot) {
    post_receive(connection, peers_[connection].credit_receives[slot], connection, memory_->at(0), 0);
}

// The first trouble is the cause of the others.
void OfiTransport::fail(std::uint32_t connection, Code code, std::string text) {
    if (!trouble_) trouble_ = {connection, code, std::move(text)};
}

// -- completions

void OfiTransport::read() {
    const ssize_t count = ::fi_cq_read(endpoint_->queue(), entries_.data(), entries_.size());
    if (count > 0) {
        gathered_ = static_cast<std::size_t>(count);
        endpoint_->awake();
    } else if (count == -FI_EAVAIL) {
        read_error();
    } else if (count != -FI_EAGAIN && count != 0) {
        fail(0, Code::kTransport,
             OfiLibrary::get().reason("provider " + provider_ + " cannot tell of completions", count));
    }
}

void OfiTransport::read_error() {
    fi_cq_err_entry error{};
    if (::fi_cq_readerr(endpoint_->queue(), &error, 0) < 0) return;  // it was not for us
    const std::string reason = endpoint_->describe(error);
    if (error.op_context == nullptr) {
        fail(0, Code::kTransport, "provider " + provider_ + " failed: " + reason);
        return;
    }
    auto& operation = *static_cast<Operation*>(error.op_context);
    const std::uint32_t connection = operation.connection;
    Peer& peer = peers_[connection];
    operation.posted = false;
    if (operation.is_send) --posted_;
    if (operation.kind == Kind::kGreeting && operation.is_send) {
        peer.trouble = reason;
        peer.greet_at = monotonic_now() + kGreetAgain;
        return;
    }
    if (error.err == FI_ETRUNC) {
        fail(connection, Code::kSizeMismatch,
             who(connection) + " sent a message of " + std::to_string(error.len + error.olen) +
                 " bytes, longer than any that this rank expects");
        return;
    }
    std::string what = operation.is_send ? "sending " : "receiving ";
    what += operation.kind == Kind::kCredit ? "a credit"
            : operation.is_send             ? "a message of call " + std::to_string(operation.call_id)
                                            : "a message";
    fail(connection, Code::kTransport,
         what + (operation.is_send ? " to " : " from ") + who(connection) + " over " + provider_ +
             " failed: " + reason);
}

void OfiTransport::gather(Nanos now, Nanos until) {
    read();
    if (!stalled_.empty()) until = std::min(until, now + kTryAgain);
    while (!gathered() && now < until) {
        const bool stop = endpoint_->wait(now, until, stop_fd_);
        read();
        if (stop) return;
        now = monotonic_now();
    }
}

bool OfiTransport::poll(Sink& sink, Nanos /*now*/) {
    const std::size_t count = std::exchange(gathered_, 0);
    bool any = count > 0;
    for (std::size_t i = 0; i < count; ++i) complete(entries_[i], sink);
    for (std::size_t left = stalled_.size(); left > 0; --left) {
        const std::uint32_t connection = stalled_.front();
        stalled_.erase(stalled_.begin());
        peers_[connection].stalled = false;
        try_again(connection, sink);
    }
    if (trouble_) {
        sink.on_lost(trouble_->connection, trouble_->code, trouble_->text);
        any = true;
    }
    return any;
}

void OfiTransport::complete(const fi_cq_tagged_entry& entry, Sink& sink) {
    auto& operation = *static_cast<Operation*>(entry.op_context);
    const std::uint32_t connection = operation.connection;
    operation.posted = false;
    if (operation.is_send) {
        --posted_;
        moved_ += operation.bytes + 1;
        try_again(connection, sink);
    } else if (operation.kind == Kind::kCredit) {
        moved_ += 1;
        post_credit_receive(connection, operation.slot);
        take_credit(connection, static_cast<std::uint32_t>(entry.data), sink);
    } else {
        operation.call_id = static_cast<std::uint32_t>(entry.data);
        operation.bytes = entry.len;
        moved_ += entry.len + 1;
        deliver(connection, sink);
    }
}

// Hands on the messages that are next on their connection.
void OfiTransport::deliver(std::uint32_t connection, Sink& sink) {
    Peer& peer = peers_[connection];
    while (!peer.lost) {
        const auto slot = static_cast<std::uint32_t>(peer.received % slots_);
        Operation& operation = peer.receives[slot];
        if (operation.posted) return;
        const Nanos now = monotonic_now();
        Frame frame;
        bool good = sink.expect(connection, operation.call_id, now, frame);
        if (good && std::exchange(frame.bytes, operation.bytes) != operation.bytes) {
            sink.on_wrong_size(connection, frame);
            good = false;
        }
        if (!good || (verify_ && !verified(connection, operation, frame, sink))) {
            peer.lost = true;
            return;
        }
        post_data_receive(connection, slot);
        ++peer.received;
        sink.on_message(connection, now);
        if (peer.received - peer.credited >= std::max(1U, slots_ / 2)) send_credit(connection, peer.received);
    }
}

bool OfiTransport::verified(std::uint32_t connection, const Operation& operation, const Frame& frame,
                            Sink& sink) {
    const std::size_t same =
        Pattern(frame).compare(payload(false, connection, operation.slot), 0, operation.bytes);
    if (same == operation.bytes) return true;
    sink.on_lost(connection, Code::kBadPayload,
                 "byte " + std::to_string(same) + " of message " + std::to_string(frame.message & kNone) +
                     " of call " + std::to_string(frame.call_id) + " from " + who(connection) +
                     " is not the one that was sent");
    return false;
}

// `count` are the low bits of how many messages the peer has received on this connection.
void OfiTransport::take_credit(std::uint32_t connection, std::uint32_t count, Sink& sink) {
    Peer& peer = peers_[connection];
    const std::uint64_t before = peer.room - peer.slots;
    const std::uint32_t more = count - static_cast<std::uint32_t>(before);
    if (static_cast<std::int32_t>(more) <= 0) return;  // a later one came first
    if (more > peer.sent - before) {
        fail(connection, Code::kProtocol, who(connection) + " gave credit for messages that were never sent");
        return;
    }
    peer.room += more;
    if (program_.header.window_messages > 0) sink.on_credit(connection, before + more, monotonic_now());
    try_again(connection, sink);
}

// -- sending

bool OfiTransport::send(std::uint32_t connection, const Frame& frame, SendTimes& times) {
    Peer& peer = peers_[connection];
    peer.frame = frame;
    peer.times.first = monotonic_now();
    if (post_message(connection)) {
        times = peer.times;
        return true;
    }
    peer.sending = true;
    ++unsent_;
    return false;
}

void OfiTransport::send_credit(std::uint32_t connection, std::uint64_t) {
    Peer& peer = peers_[connection];
    if (!peer.credit_due) {
        peer.credit_due = true;
        ++unsent_;
    }
    post_credit(connection);
}

// What could not be posted before.
void OfiTransport::try_again(std::uint32_t connection, Sink& sink) {
    Peer& peer = peers_[connection];
    if (peer.credit_due) post_credit(connection);
    if (peer.sending && post_message(connection)) {
        peer.sending = false;
        --unsent_;
        sink.on_sent(connection, peer.times);
    }
}

void OfiTransport::tend() {
    // shm has nothing left to do for peers, and must not look at one in this process that has gone already.
    if (endpoint_ == nullptr || endpoint_->endpoint() == nullptr || provider_ == "shm") return;
    read();
    gathered_ = 0;
}

void OfiTransport::break_connection(std::uint32_t connection) {
    fail(connection, Code::kPeerClosed, "the connection to " + who(connection) + " was broken");
}

}  // namespace genie
