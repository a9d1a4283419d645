#include "verbs_card.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>

#include "failure.h"
#include "verbs_settings.h"

namespace genie {
namespace {

constexpr std::uint32_t kMagic = 0x32425647;  // "GVB2"
constexpr std::size_t kLeastFlowBytes = 4 + 2 + 1 + 8 + 8 + 8;

class Writer {
  public:
    template <class Number>
    Writer& put(Number number) {
        static_assert(std::is_arithmetic_v<Number>);
        const std::size_t at = bytes_.size();
        bytes_.resize(at + sizeof number);
        std::memcpy(bytes_.data() + at, &number, sizeof number);
        return *this;
    }
    Writer& put(const GidBytes& gid) {
        bytes_.insert(bytes_.end(), gid.begin(), gid.end());
        return *this;
    }
    std::vector<std::uint8_t> take() { return std::move(bytes_); }

  private:
    std::vector<std::uint8_t> bytes_;
};

class Reader {
  public:
    Reader(std::span<const std::uint8_t> bytes, std::uint32_t rank) : bytes_(bytes), rank_(rank) {}

    template <class Number>
    Reader& get(Number& number) {
        static_assert(std::is_arithmetic_v<Number>);
        take(&number, sizeof number);
        return *this;
    }
    Reader& get(bool& flag) {
        std::uint8_t byte = 0;
        get(byte);
        if (byte > 1) wrong("a flag that is neither 0 nor 1");
        flag = byte == 1;
        return *this;
    }
    Reader& get(GidBytes& gid) {
        take(gid.data(), gid.size());
        return *this;
    }
    std::size_t left() const { return bytes_.size(); }
    [[noreturn]] void wrong(const std::string& what) const {
        throw Failure(Code::kProtocol,
                      "the RDMA card of rank " + std::to_string(rank_) + " cannot be read: " + what +
                          "; do all hosts run the same version of GENIE, with transport=verbs?",
                      rank_);
    }

  private:
    void take(void* to, std::size_t size) {
        if (bytes_.size() < size) wrong("it ends too early");
        std::memcpy(to, bytes_.data(), size);
        bytes_ = bytes_.subspan(size);
    }

    std::span<const std::uint8_t> bytes_;
    const std::uint32_t rank_;
};

}  // namespace

std::vector<std::uint8_t> VerbsCard::bytes() const {
    Writer out;
    out.put(kMagic).put(gid).put(lid).put(link_layer).put(mtu).put(mode);
    out.put(std::uint8_t{split}).put(std::uint8_t{verify});
    out.put(queue_pairs).put(slots).put(rkey).put(message_bytes).put(data_first_above);
    out.put(static_cast<std::uint32_t>(flows.size()));
    for (const VerbsFlowCard& flow : flows) {
        out.put(flow.peer).put(flow.channel).put(std::uint8_t{flow.sends});
        out.put(flow.address).put(flow.stride_bytes);
        for (const VerbsQueuePair& pair : flow.queue_pairs) out.put(pair.number).put(pair.psn);
    }
    return out.take();
}

VerbsCard VerbsCard::parse(std::span<const std::uint8_t> bytes, std::uint32_t rank) {
    Reader in(bytes, rank);
    VerbsCard card;
    std::uint32_t magic = 0;
    in.get(magic);
    if (magic != kMagic) in.wrong("it does not begin as one");
    in.get(card.gid).get(card.lid).get(card.link_layer).get(card.mtu).get(card.mode);
    in.get(card.split).get(card.verify);
    in.get(card.queue_pairs)
        .get(card.slots)
        .get(card.rkey)
        .get(card.message_bytes)
        .get(card.data_first_above);
    if (card.queue_pairs == 0 || card.queue_pairs > kMostQueuePairs) in.wrong("its number of queue pairs");
    if (card.mtu < IBV_MTU_256 || card.mtu > IBV_MTU_4096) in.wrong("its MTU");
    std::uint32_t count = 0;
    in.get(count);
    if (count > in.left() / kLeastFlowBytes) in.wrong("it ends too early");
    card.flows.resize(count);
    for (VerbsFlowCard& flow : card.flows) {
        in.get(flow.peer).get(flow.channel).get(flow.sends).get(flow.address).get(flow.stride_bytes);
        flow.queue_pairs.resize(card.queue_pairs);
        for (VerbsQueuePair& pair : flow.queue_pairs) in.get(pair.number).get(pair.psn);
    }
    if (in.left() != 0) in.wrong("it is too long");
    return card;
}

const VerbsFlowCard* VerbsCard::find(std::uint32_t rank, std::uint16_t channel, bool sends) const {
    const auto found = std::find_if(flows.begin(), flows.end(), [&](const VerbsFlowCard& flow) {
        return flow.peer == rank && flow.channel == channel && flow.sends == sends;
    });
    return found == flows.end() ? nullptr : &*found;
}

}  // namespace genie
