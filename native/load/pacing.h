// When each packet of a load is due: pure arithmetic, no clock.
//
// Time runs from the start of the load. With bursts it is sent in windows of `on` that alternate with pauses
// of `off`, the first window at 0; the rate is that within a window.
#pragma once

#include <algorithm>
#include <cstdint>

#include "units.h"

namespace genie {

struct Pacing {
    std::uint64_t rate_bps = 0;
    std::uint32_t packet_bytes = 0;
    Nanos on;  // 0: without pauses
    Nanos off;

    // How many packets are due at `time`: those whose `when` is not later.
    std::uint64_t due(Nanos time) const {
        const Wide bits = Wide(active(time).value) * rate_bps / kNsPerSecond;
        return static_cast<std::uint64_t>(bits / packet_bits()) + 1;
    }

    // When packet `number`, from 0, is due.
    Nanos when(std::uint64_t number) const {
        const Wide wanted = (Wide(number) * packet_bits() * kNsPerSecond + rate_bps - 1) / rate_bps;
        if (wanted > Wide(Nanos::never().value)) return Nanos::never();
        const Nanos sending{static_cast<std::int64_t>(wanted)};
        if (on.value == 0) return sending;
        const Wide time =
            Wide(sending.value / on.value) * Wide((on + off).value) + Wide(sending.value % on.value);
        return time > Wide(Nanos::never().value) ? Nanos::never() : Nanos{static_cast<std::int64_t>(time)};
    }

    // Packets in `span` of sending, rounded down.
    std::uint64_t packets_in(Nanos span) const {
        return static_cast<std::uint64_t>(Wide(span.value) * rate_bps / kNsPerSecond / packet_bits());
    }

  private:
    static constexpr Wide kNsPerSecond = 1'000'000'000;
    Wide packet_bits() const { return Wide(packet_bytes) * 8; }
    // How long was sent until `time`. A window's end is no part of it: what is due there opens the next one.
    Nanos active(Nanos time) const {
        if (on.value == 0) return time;
        const std::int64_t period = (on + off).value;
        return {time.value / period * on.value + std::min(time.value % period, on.value - 1)};
    }
};

}  // namespace genie
