// ports.smp, docs/formats.md §5: fixed-width records in a shared mapping, valid up to the commit counter at
// any time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "descriptor.h"

namespace genie {

struct SampleRecord {
    std::int64_t mono_ns;
    std::uint32_t port;
    std::uint32_t zero;
    std::uint64_t backlog_bytes;
    std::uint64_t tx_bytes;
    std::uint64_t drops;
    std::uint64_t overlimits;
    std::uint64_t ce_marked;
    std::uint64_t marker_queue_bytes;
};
static_assert(sizeof(SampleRecord) == 64);

class SampleFile {
  public:
    SampleFile(const std::string& path, std::uint32_t ports, std::uint64_t interval_ns);
    SampleFile(const SampleFile&) = delete;
    SampleFile& operator=(const SampleFile&) = delete;
    // Cuts the file to what was committed.
    ~SampleFile();

    // Adds a record, or counts it as dropped if the disk is full. Never blocks for longer than the disk does.
    void append(const SampleRecord& record);

  private:
    bool grow();

    Descriptor file_;
    char* memory_ = nullptr;
    std::size_t mapped_bytes_ = 0;
    std::uint64_t capacity_ = 0;
    std::uint64_t committed_ = 0;
    std::uint64_t dropped_ = 0;
};

}  // namespace genie
