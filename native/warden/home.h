// DIR, the folder of one warden: spec, log, socket, output, and alive, which is flocked while a warden lives.
#pragma once

#include <string>
#include <string_view>

#include "descriptor.h"

namespace genie::warden {

// Throws Failure if not all of `text` could be written.
void write_all(int file, std::string_view text, const std::string& what);

// A file's text, "" if it is not there. Throws Failure beyond `most` bytes.
std::string read_file(int folder, const char* name, std::size_t most);

class Home {
  public:
    // Throws Failure if `path` is no folder of this user's own.
    explicit Home(const std::string& path);

    // Makes `path` and the folders above it that are missing; undo_make() removes those again.
    static Home make(const std::string& path);
    void undo_make();

    int folder() const { return folder_.get(); }
    const std::string& path() const { return path_; }

    // Whether this process now is the warden; not if another lives. Held until all that inherited it have
    // ended.
    bool take();
    // Ends that for all of them at once.
    void release() const;

    // Writes a file and its name to disk before it returns; an earlier one is replaced at once or not at all.
    void store(const char* name, std::string_view text) const;
    void remove(const char* name) const;

    // The listening socket DIR/socket.
    Descriptor listen() const;
    // A connection to DIR/socket; not valid if nobody listens.
    Descriptor connect() const;

  private:
    std::string path_;
    std::string made_;  // the uppermost folder made
    bool made_alive_ = false;
    Descriptor folder_;
    Descriptor alive_;
};

}  // namespace genie::warden
