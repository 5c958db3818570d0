// A shop's agent in Node, on the openai package, with one tool.
import OpenAI from "openai";

let text = "";
for await (const piece of process.stdin) text += piece;
const row = JSON.parse(text);
const client = new OpenAI();
const item = { type: "object", properties: { item: { type: "string" } }, required: ["item"] };
const stock = { name: "stock", description: "How many of an item the shop has.", parameters: item };
const messages = [
  { role: "system", content: "You work for a shop. Answer in one word." },
  { role: "user", content: row.input },
];

for (;;) {
  const made = await client.chat.completions.create({
    model: "gpt-4o", messages, tools: [{ type: "function", function: stock }],
  });
  const said = made.choices[0].message;
  messages.push(said);
  if (!said.tool_calls?.length) {
    console.log(said.content);
    break;
  }
  for (const call of said.tool_calls) {
    const { item } = JSON.parse(call.function.arguments);
    messages.push({ role: "tool", tool_call_id: call.id, content: item === "lamp" ? "none" : "12" });
  }
}
