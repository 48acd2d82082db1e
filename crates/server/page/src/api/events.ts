// Splits a stream of server-sent events into the data of each event.

export class EventSplitter {
  private rest = "";
  private data: string[] = [];

  /** The events that `text`, the next piece of the stream, completes. */
  push(text: string): string[] {
    const events: string[] = [];
    // A piece may end between the two signs of a line end; the first one waits for the second.
    const lines = (this.rest + text).split(/\r\n|\n|\r(?!$)/);
    this.rest = lines.pop()!;
    for (const line of lines) {
      if (line === "") {
        if (this.data.length > 0) events.push(this.data.join("\n"));
        this.data = [];
      } else if (line.startsWith("data:")) {
        this.data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
    return events;
  }
}
